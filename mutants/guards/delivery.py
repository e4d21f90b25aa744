"""The guards of delivery."""

from __future__ import annotations

from mutants.guard import guard

GUARDS = ()
