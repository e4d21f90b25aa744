"""The DAG factories, and the pipeline as a task group."""
