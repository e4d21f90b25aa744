"""The tasks of a pipeline, and those of an author's own DAG."""
