"""Waiting for messages."""
