"""Chaos: real processes and servers, killed, stopped, starved and restarted, and a checker that counts messages."""
