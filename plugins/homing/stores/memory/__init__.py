"""Messages in the memory of one process."""

from homing.stores.memory.store import MemoryStore, open_memory_store

__all__ = ["MemoryStore", "open_memory_store"]
