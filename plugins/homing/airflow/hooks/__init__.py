"""Stores behind Airflow connections."""
