"""The demo: a real Airflow stack on this machine, and the orders example on it."""
