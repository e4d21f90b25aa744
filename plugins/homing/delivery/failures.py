"""What has failed and waits: in the failure store for its replay, in the dead-letter store for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from homing.constraints import AtLeastOne, check
from homing.delivery.leased_part import resolve
from homing.delivery.stores import PipelineStores
from homing.errors import ConfigurationError
from homing.failure import dead_letter_id, failed_at, record_in, ref_of
from homing.message import Message, MessageRef
from homing.pipeline_store import PipelineStore
from homing.portions import portions
from homing.size_limit import weight

_PAGE = 1_000


@dataclass(frozen=True)
class Failure:
    """One failed message. `errors` and `done` are keyed by destination flow; the source flow's key is empty."""

    ref: MessageRef
    batch_id: str
    failed_at: datetime
    errors: Mapping[str, Mapping[str, Any]]
    done: Mapping[str, Any]
    dead: bool

    @property
    def message_id(self) -> str:
        return self.ref.id

    @property
    def groups(self) -> list[str]:
        """The names of the error groups it belongs to: which handler raised what."""
        return sorted({_group_of(error) for error in self.errors.values()})


@dataclass(frozen=True)
class Selection:
    """Which failures are meant: those that fit everything that is set, the oldest first, `limit` at most.

    `ids` are ids of messages, or names of single messages.
    """

    batch: str | None = None
    ids: Collection[str] = ()
    error_group: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    destination: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        check("limit", self.limit, AtLeastOne | None)
        if self.since and self.until and self.since >= self.until:
            raise ConfigurationError(f"the time range ends before it begins: {self.since} to {self.until}")

    @property
    def everything(self) -> bool:
        """Whether nothing narrows it down."""
        return not (
            self.batch or self.ids or self.error_group or self.since or self.until or self.destination or self.limit
        )

    def fits(self, failure: Failure) -> bool:
        return (
            (self.error_group is None or self.error_group in failure.groups)
            and (self.since is None or failure.failed_at >= self.since)
            and (self.until is None or failure.failed_at < self.until)
            and (self.destination is None or self.destination in failure.errors)
        )


@dataclass
class ErrorGroup:
    """Failures of one kind, counted; a message that failed at two destinations is in two groups."""

    name: str
    failures: int = 0
    dead: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    example: str = ""
    example_error: str = ""
    retried: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)

    def add(self, failure: Failure) -> None:
        self.failures += 1
        self.dead += failure.dead
        self.oldest = min(filter(None, (self.oldest, failure.failed_at)))
        self.newest = max(filter(None, (self.newest, failure.failed_at)))
        self.skipped.update(flow for flow in failure.done if flow)
        self.retried.update(failure.errors)
        if not self.example:
            self.example = failure.message_id
            mine = (error for error in failure.errors.values() if _group_of(error) == self.name)
            self.example_error = str(next(mine)["message"])

    @property
    def plan(self) -> str:
        """What a replay would do with it, in words."""
        tried = ", ".join(flow or "the whole chain" for flow in sorted(self.retried))
        kept = ", ".join(sorted(self.skipped))
        return f"tries {tried} again" + (f", skips {kept} where that is done" if kept else "")


def read_failures(stores: PipelineStores, names: Collection[str] | None = None) -> Iterator[Failure]:
    """Every message that waits after its failure, or those of these names; the waiting ones before the dead ones."""
    dead_ids = None if names is None else [dead_letter_id(stores.store.name, name) for name in names]
    for page in _pages(stores.failures, names):
        yield from _to_failures(stores, page, dead=False)
    for page in _pages(stores.dead_letters, dead_ids):
        yield from _to_failures(stores, page, dead=True)


def select(stores: PipelineStores, selection: Selection) -> list[Failure]:
    """The failures that fit, each message once, the oldest first."""
    wanted = [ref for refs in resolve(stores, selection.ids).values() for ref in refs]
    wanted += stores.ledger.unfinished(selection.batch) if selection.batch else []
    names = {ref.name for ref in wanted} if selection.ids or selection.batch else None
    found = {failure.ref: failure for failure in read_failures(stores, names) if selection.fits(failure)}
    oldest_first = sorted(found.values(), key=lambda failure: (failure.failed_at, failure.message_id))
    return oldest_first[: selection.limit]


def group(failures: Iterable[Failure]) -> list[ErrorGroup]:
    """The failures by what went wrong, the largest group first."""
    groups: dict[str, ErrorGroup] = {}
    for failure in failures:
        for name in failure.groups:
            groups.setdefault(name, ErrorGroup(name)).add(failure)
    return sorted(groups.values(), key=lambda each: (-each.failures, each.name))


def _group_of(error: Mapping[str, Any]) -> str:
    return f"{error['handler']}: {error['type']}"


def _pages(store: PipelineStore, ids: Collection[str] | None) -> Iterator[list[Message]]:
    return portions(store.view.look(ids), weight, most=_PAGE)


def _to_failures(stores: PipelineStores, page: Sequence[Message], *, dead: bool) -> Iterator[Failure]:
    # Entries that other programs wrote there are not failures of messages.
    waiting = [(each, record, ref_of(record)) for each in page if (record := record_in(each)) is not None]
    known = stores.ledger.known([ref.id for _, _, ref in waiting])
    for each, record, ref in waiting:
        if dead and not stores.is_own(ref, known):
            continue  # of another pipeline
        # The record was true when it was written; the ledger also knows what replays have done since.
        entries = known.get(ref, {})
        errors = {flow: entry.error for flow, entry in entries.items() if not entry.done and entry.error}
        done = {flow: entry.result for flow, entry in entries.items() if entry.done}
        yield Failure(
            ref=ref,
            batch_id=record.get("batch_id") or "",
            failed_at=failed_at(each, record),
            errors=errors or record["errors"],
            done={**record["done"], **done},
            dead=dead,
        )
