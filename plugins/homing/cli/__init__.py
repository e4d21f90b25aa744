"""The command line: `homing …`, and the same commands as `airflow homing …`."""
