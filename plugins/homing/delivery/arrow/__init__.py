"""Messages in Arrow's columns: what Spark's executors work on, and how one step of a run leaves them for the next."""
