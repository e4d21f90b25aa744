"""The guards of spark."""

from __future__ import annotations

from mutants.guard import guard

GUARDS = ()
