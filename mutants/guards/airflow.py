"""The guards of airflow."""

from __future__ import annotations

from mutants.guard import guard

GUARDS = ()
