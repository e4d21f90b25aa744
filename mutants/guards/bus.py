"""The guards of bus."""

from __future__ import annotations

from mutants.guard import guard

GUARDS = ()
