"""The parts of an archive, one for each day. A function in the database makes and drops them.

The function has the rights of the user who made the archive. So a consumer needs no right to make tables, but only the
right to call this function.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.stores.sql.dialects import SCHEMA_LOCK

#: Of a day, in nanoseconds.
LENGTH = 86_400 * 1_000_000_000


def function_name(archive: Table) -> str:
    return f"{archive.name}_day"


def signature(archive: Table) -> str:
    """How the function is named in SQL."""
    return f'"{function_name(archive)}"(bigint, boolean)'


def is_there(connection: Connection, archive: Table) -> bool:
    found = sa.select(sa.func.to_regprocedure(signature(archive)).is_not(None))
    return bool(connection.execute(found).scalar_one())


def statements(archive: Table, schema: str) -> list[str]:
    """The statements that create the function; only its owner may call it then."""
    # Said in full: a function with its owner's rights looks nowhere that its caller chooses.
    place = f'"{schema}"'.replace("'", "''")
    table = f'{place}."{archive.name}"'
    part = f"""'{place}."{archive.name}_' || to_char(to_timestamp(day * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD') || '"'"""
    named = f'"{function_name(archive)}"(day bigint, wanted boolean)'
    make = f"""
CREATE OR REPLACE FUNCTION {named} RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $homing$
DECLARE
    part text := {part};
    gone bigint := 0;
BEGIN
    PERFORM pg_advisory_xact_lock({SCHEMA_LOCK});
    IF wanted THEN
        EXECUTE 'CREATE TABLE IF NOT EXISTS ' || part || ' PARTITION OF {table} FOR VALUES FROM ('
            || day * {LENGTH} || ') TO (' || (day + 1) * {LENGTH} || ')';
    ELSIF to_regclass(part) IS NOT NULL THEN
        EXECUTE 'SELECT count(*) FROM ' || part INTO gone;
        EXECUTE 'DROP TABLE ' || part;
    END IF;
    RETURN gone;
END
$homing$""".strip()  # noqa: S608 - of the names of tables
    return [make, f"REVOKE ALL ON FUNCTION {signature(archive)} FROM PUBLIC"]


def make(connection: Connection, archive: Table, day: int) -> None:
    _call(connection, archive, day, wanted=True)


def drop(connection: Connection, archive: Table, day: int) -> int:
    """How many messages went with the day."""
    return _call(connection, archive, day, wanted=False)


def _call(connection: Connection, archive: Table, day: int, *, wanted: bool) -> int:
    function = sa.text(f'SELECT "{function_name(archive)}"(CAST(:day AS bigint), :wanted)')
    return int(connection.execute(function, {"day": day, "wanted": wanted}).scalar_one())
