"""Which harms there are, and to whom each is done: decided by what there is to harm, before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from chaos.destination import MODES
from chaos.servers import ServedPostgreSQL
from chaos.subjects import Traits


class Row(NamedTuple):
    """A kind of harm, and the sign that it hit somebody: without it, it does not count as done.

    `names` are the harms of that kind to one subject; when there are none, `why_not` says why.
    """

    kind: str
    what: str
    sign: str
    names: Callable[[Traits], list[str]]
    why_not: str = ""


def _of_servers(*verbs: str) -> Callable[[Traits], list[str]]:
    return lambda traits: [f"{verb} {server}" for server in traits.servers for verb in verbs]


_NO_SERVER = "there is no server: the store is a file"

ROWS = (
    Row(
        "kill",
        "SIGKILL to one of these processes; what is dead is started again",
        "the process is gone",
        lambda traits: [f"kill {role}" for role in traits.roles],
    ),
    Row(
        "stop",
        "SIGSTOP: who holds messages for longer than its lease, the others for half a second",
        "the process was stopped until the end; and RabbitMQ gave up a listener that gave it no sign of life",
        lambda traits: [f"stop {role}" for role in traits.roles],
    ),
    Row(
        "clock",
        "the clock of one process is an hour ahead for a while, and then an hour behind",
        "the process noted a time that is wrong by more than half an hour",
        lambda traits: [f"clock of {role} {way}" for role in traits.clocks for way in ("ahead", "behind")],
    ),
    Row(
        "destination",
        "down, slow, failing after it took the message; or the handler runs into a real OSError, TimeoutError or "
        "MemoryError",
        "it was called meanwhile, and answered so",
        lambda _: [f"destination {mode}" for mode in MODES],
    ),
    Row(
        "server killed",
        "by SIGKILL, and started again over its data",
        "nothing answered at its port",
        _of_servers("kill"),
        _NO_SERVER,
    ),
    Row(
        "server frozen",
        "all its processes are stopped, and then go on",
        "somebody asked it meanwhile",
        _of_servers("freeze"),
        _NO_SERVER,
    ),
    Row(
        "network",
        "between everybody and the server: cut; half open, so that nobody hears anything; slow; and replies lost after "
        "the server has committed",
        "the proxy ended connections; withheld, delayed or swallowed what they carried",
        _of_servers("cut", "half-open", "slow", "lose replies of"),
        _NO_SERVER,
    ),
    Row(
        "connections",
        "the server has none left, and ends those there were",
        "it turned one more away",
        _of_servers("fill"),
        _NO_SERVER,
    ),
    Row(
        "fail-over",
        "the primary is killed; its standby takes no writes for a while, and is then promoted",
        "somebody was told that it is read-only; and afterwards it took writes",
        lambda traits: [f"fail over {name}" for name in traits.servers if name == ServedPostgreSQL.name],
        "only PostgreSQL has a standby here",
    ),
    Row(
        "disk",
        "the file system of the store, or of the work directory, is full",
        "the system refused a byte more, and somebody who works on the subject met that",
        lambda traits: ["fill disk"] if traits.disk else [],
        "it writes to no file system but the server's",
    ),
    Row(
        "work directory",
        "it is away, and there is a file in its place",
        "somebody who works on the subject met that",
        lambda traits: ["take work directory away"] if traits.work_dir else [],
        "there is none",
    ),
    Row(
        "leases",
        "the rows of the store and the ledger are aged by a day while everybody is at work",
        "there were leases to end",
        lambda traits: ["end leases"] if traits.sql else [],
        "its leases are not in rows: its workers are stopped for longer than theirs",
    ),
)


def harms_of(traits: Traits) -> list[str]:
    """The names of all harms that are done to such a subject."""
    return [name for row in ROWS for name in row.names(traits)]


def explained() -> str:
    """The other table of the documentation: what each harm is, and how it is known that it hit."""
    return "\n".join(f"| {row.kind} | {row.what} | {row.sign} |" for row in ROWS)


def as_markdown(kinds: Mapping[str, Traits]) -> str:
    """The table of the documentation: how many harms of each kind are done to each subject, or why none."""
    return "\n".join(_lines(kinds))


def _lines(kinds: Mapping[str, Traits]) -> Iterator[str]:
    yield f"| harm | {' | '.join(kinds)} | where none |"
    yield "| --- |" + " --- |" * (len(kinds) + 1)
    for row in ROWS:
        numbers = [len(row.names(traits)) for traits in kinds.values()]
        why = "" if all(numbers) else row.why_not
        yield f"| {row.kind} | {' | '.join(str(number or '–') for number in numbers)} | {why} |"
