"""The guards of pipeline."""

from __future__ import annotations

from mutants.guard import guard

GUARDS = ()
