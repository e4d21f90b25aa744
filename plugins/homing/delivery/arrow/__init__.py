"""Messages in Arrow's columns. Spark's executors work on them so, and one step of a run leaves them so for the next."""
