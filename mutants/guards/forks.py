"""The guards of forked processes, which have their parent's connections and locks and may use neither."""

from __future__ import annotations

from mutants.guard import guard

_SQL = "tests/unit/stores/test_sql_forks.py::"
_STORED = "test_two_children_and_their_parent_store_at_the_same_time_and_lose_nothing"

GUARDS = (
    guard(
        "a forked process has connections to its database of its own",
        "stores/sql/database.py",
        "            self._gate.start_over()\n        self._set_up_engine()\n",
        "            self._gate.start_over()\n",
        f"{_SQL}{_STORED}[postgresql]",
    ),
    guard(
        "nothing of SQLite is open when a process forks",
        "stores/sql/database.py",
        "            self._engine.dispose()\n\n    def go_on",
        "            pass\n\n    def go_on",
        f"{_SQL}test_a_child_goes_on_when_its_parent_closes_the_store[sqlite]",
    ),
    guard(
        "a forked process does not keep its parent's connections alive",
        "stores/sql/database.py",
        "                hang_up(descriptor_of(connection))\n",
        "                descriptor_of(connection)\n",
        f"{_SQL}test_a_child_does_not_keep_its_parents_connections_alive[postgresql]",
    ),
    guard(
        "a forked process waits for no lock that a thread of its parent's held",
        "stores/sql/required_tables.py",
        '"""In a forked process."""\n        self._lock = threading.Lock()\n',
        '"""In a forked process."""\n',
        f"{_SQL}test_a_lock_that_a_thread_held_does_not_hang_the_child[postgresql]",
    ),
    guard(
        "a forked process has a connection to RabbitMQ of its own",
        "stores/rabbitmq/connection.py",
        "        self._connection = self._channel = self._loop = self._failure = None\n\n    @property",
        "\n    @property",
        f"tests/rabbitmq/test_forks.py::{_STORED}",
    ),
    guard(
        "a breaker that was being tried when its process forked does not stay open in the child",
        "invocation/circuit_breaker.py",
        "        start_over_after_fork(self)\n",
        "",
        "tests/unit/listener/test_forks.py::"
        "test_a_try_that_stayed_in_the_parent_does_not_keep_a_breaker_open_in_a_forked_process",
    ),
    guard(
        "a forked process has a connection to Service Bus of its own",
        "stores/servicebus/store.py",
        "        self._set_up()\n        start_over_after_fork(self)\n",
        "        self._set_up()\n",
        "tests/bus/test_forks.py::test_the_store_on_service_bus_connects_for_itself_in_a_child",
    ),
)
