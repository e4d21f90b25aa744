"""The guards of listener."""

from __future__ import annotations

from mutants.guard import guard

GUARDS = ()
