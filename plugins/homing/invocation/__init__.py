"""Calling what an author wrote: its arguments by its signature, copies of the content, coroutines, errors described."""
