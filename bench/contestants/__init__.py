"""Queues that do the same work, each in a process of its own, in whichever environment has its package."""
