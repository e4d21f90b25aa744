"""The guards of servicebus."""

from __future__ import annotations

from mutants.guard import guard

GUARDS = ()
