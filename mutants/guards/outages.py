"""The guards of databases and brokers that are away, that forget what they confirmed, or whose clock was wrong."""

from __future__ import annotations

from mutants.guard import guard

_OUTAGES, _CLOCK, _DURABILITY = (
    f"tests/unit/stores/test_sql_{name}.py::" for name in ("outages", "clock", "durability")
)
_SILENT = f"{_OUTAGES}test_a_network_that_brings_nothing_is_not_waited_for_for_ever"

GUARDS = (
    guard(
        "PostgreSQL keeps what it confirmed to us, whatever it is told by others",
        "stores/sql/engine.py",
        '"; ".join([*settings, durability.ASK_POSTGRESQL])',
        '"; ".join([*settings, durability.ASK_POSTGRESQL.replace("\'off\'", "\'never\'")])',
        f"{_DURABILITY}test_what_was_confirmed_is_there_after_everything_is_killed[server]",
    ),
    guard(
        "PostgreSQL keeps what was stored in a transaction of the caller's own",
        "stores/sql/notify.py",
        "connection.execute(_CALL_AND_PLEDGE if pledged else _CALL,",
        "connection.execute(_CALL,",
        f"{_DURABILITY}test_what_was_stored_in_a_transaction_of_ones_own_is_there_too",
    ),
    guard(
        "a database that takes no writes for a while is away",
        "stores/sql/outages.py",
        '"40", "25006",',
        '"40",',
        f"{_OUTAGES}test_a_postgresql_that_is_only_to_be_read_from_is_away_and_comes_back",
        "tests/unit/delivery/test_read_only_dead_letters.py::test_process_and_deliver_go_on_without_it",
    ),
    guard(
        "a PostgreSQL that says nothing is not waited for for ever",
        "stores/sql/engine.py",
        "                    elif time.monotonic() - heard > silence:\n",
        "                    elif False:\n",
        f"{_SILENT}[postgresql]",
    ),
    guard(
        "a MariaDB that says nothing is not waited for for ever",
        "stores/sql/engine.py",
        '{"read_timeout": timeout + _GRACE, "write_timeout": timeout + _GRACE}',
        "{}",
        f"{_SILENT}[mariadb]",
    ),
    guard(
        "what was stored while SQLite's clock was ahead does not wait for it",
        "stores/sql/future_times.py",
        "        return (c.time_next > ahead) & c.lock_token.is_(None) & sa.or_(stored, released)\n",
        "        return (c.time_next > ahead) & c.lock_token.is_(None) & released\n",
        f"{_CLOCK}test_what_was_stored_while_the_clock_was_ahead_is_delivered_when_it_is_right_again",
    ),
    guard(
        "what was released while SQLite's clock was ahead does not wait for it",
        "stores/sql/future_times.py",
        "        return (c.time_next > ahead) & c.lock_token.is_(None) & sa.or_(stored, released)\n",
        "        return (c.time_next > ahead) & c.lock_token.is_(None) & stored\n",
        f"{_CLOCK}test_what_was_released_while_the_clock_was_ahead_does_not_wait_for_it",
    ),
    guard(
        "what was claimed while SQLite's clock was ahead is not held until it is there again",
        "stores/sql/future_times.py",
        "            until = now + end - claimed_at(token)\n",
        "            until = end\n",
        f"{_CLOCK}test_a_lease_taken_while_the_clock_was_ahead_is_kept_and_runs_out",
    ),
    guard(
        "a RabbitMQ that says nothing is not waited for for ever",
        "stores/rabbitmq/connection.py",
        "        if not self.wait(done, self._timeout):\n",
        "        if not self.wait(done, 70 * self._timeout):\n",
        "tests/rabbitmq/test_outages.py::test_a_network_that_brings_nothing_is_not_waited_for_for_ever[store]",
    ),
)
