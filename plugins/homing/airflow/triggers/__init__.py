"""Waiting for messages in the triggerer, and starting DAGs for them."""
