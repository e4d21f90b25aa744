"""The subjects there are, and how each is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos.servers import Served, ServedMariaDB, ServedPostgreSQL, ServedRabbitMQ, small_disk
from chaos.spark_subjects import AIRFLOW, CLUSTER, LAKE, on_airflow, on_cluster, on_lake
from chaos.subjects import Subject, Traits, urls
from chaos.workers import BATCH_LEASE, LEASE, QUEUE, RETRIES
from homing import bus

#: A broker ends the connection of whoever was not heard of for two heartbeats.
_HEARTBEAT = 2
_RABBIT_OPTIONS = f"ack_wait={LEASE:g}&heartbeat={_HEARTBEAT}&socket_timeout=5&stack_timeout=8"

Make = Callable[[Path, Traits], AbstractContextManager[Subject]]

_ROLES = {"generator": 0, "worker": 1}
_LISTENERS = {"generator": "generate", "worker 0": "listen", "worker 1": "listen"}
_DELIVERERS = {"generator": "generate", "worker 0": "deliver", "worker 1": "deliver"}


@dataclass(frozen=True)
class Kind:
    """A subject to be made, and its share of the time, in seconds of ten minutes. Those of one lane run one by one."""

    traits: Traits
    make: Make
    share: float
    lane: int = 0


def _listening(*servers: str, **more: object) -> Traits:
    """Two processes with a StoreListener."""
    given = {
        "servers": servers,
        "listens": True,
        "tries": 1 + RETRIES,
        "roles": _ROLES,
        "leases": {"worker": LEASE},
        **more,
    }
    return Traits(**given)  # type: ignore[arg-type]


def _delivering(*servers: str, **more: object) -> Traits:
    """Two processes that do a pipeline's tasks."""
    given = {
        "servers": servers,
        "disk": "work",
        "work_dir": True,
        "roles": _ROLES,
        "leases": {"worker": BATCH_LEASE},
        **more,
    }
    return Traits(**given)  # type: ignore[arg-type]


def _taking_in(role: str, *servers: str, **more: object) -> Traits:
    """A process that takes messages in, and one that does a pipeline's tasks."""
    roles = {"generator": 0, role: 0, "worker": 1}
    return _delivering(*servers, roles=roles, leases={"worker": BATCH_LEASE, role: LEASE}, **more)


# -- making them -----------------------------------------------------------------------------------------------


@contextmanager
def _listen_on_sqlite(folder: Path, traits: Traits) -> Iterator[Subject]:
    with small_disk(folder / "store") as disk:
        yield Subject(folder, traits, *urls(f"sqlite:///{folder}/store/chaos.db"), _LISTENERS, disk=disk)


@contextmanager
def _deliver_on_sqlite(folder: Path, traits: Traits) -> Iterator[Subject]:
    with small_disk(folder / "work") as disk:
        (folder / "work" / "runs").mkdir()
        yield Subject(folder, traits, *urls(f"sqlite:///{folder}/work/chaos.db"), _DELIVERERS, disk=disk)


def _on_server(serve: type[Served], workers: dict[str, str]) -> Make:
    @contextmanager
    def make(folder: Path, traits: Traits) -> Iterator[Subject]:
        with ExitStack() as stack:
            disk = _work_disk(stack, folder, traits)
            served = _serve(stack, serve)
            yield Subject(folder, traits, *urls(served.new_url()), workers, servers=[served], disk=disk)

    return make


@contextmanager
def _listen_on_rabbitmq(folder: Path, traits: Traits) -> Iterator[Subject]:
    with ExitStack() as stack:
        served = _serve(stack, ServedRabbitMQ)
        broker = served.new_url()
        store, dead = (f"{broker}?store={name}&{_RABBIT_OPTIONS}" for name in ("orders", "orders_dead"))
        yield Subject(folder, traits, store, dead, _LISTENERS, servers=[served])


@contextmanager
def _take_in_from_rabbitmq(folder: Path, traits: Traits) -> Iterator[Subject]:
    with ExitStack() as stack:
        disk = _work_disk(stack, folder, traits)
        broker, database = _serve(stack, ServedRabbitMQ), _serve(stack, ServedPostgreSQL)
        source = f"{broker.new_url()}?store=orders&{_RABBIT_OPTIONS}"
        workers = {"generator": "generate", "intake": "intake", "worker": "deliver"}
        stores = urls(database.new_url())
        yield Subject(folder, traits, *stores, workers, source, servers=[broker, database], disk=disk)


@contextmanager
def _take_in_from_bus(folder: Path, traits: Traits) -> Iterator[Subject]:
    with ExitStack() as stack:
        disk = _work_disk(stack, folder, traits)
        served = _serve(stack, ServedPostgreSQL)
        database = served.new_url()
        with bus.Administrator(database) as administrator:
            administrator.create_queue(QUEUE, lock_duration=LEASE)
        workers = {"generator": "generate", "bus listener": "bus_intake", "worker": "deliver"}
        stores = urls(served.new_url())
        yield Subject(folder, traits, *stores, workers, f"bus:{database}", servers=[served], disk=disk)


@contextmanager
def _deliver_on_two_databases(folder: Path, traits: Traits) -> Iterator[Subject]:
    """The pipeline's store is in one database server, its dead-letter store in another."""
    with ExitStack() as stack:
        disk = _work_disk(stack, folder, traits)
        first, second = _serve(stack, ServedPostgreSQL), _serve(stack, ServedMariaDB)
        store, dead = urls(first.new_url())[0], urls(second.new_url())[1]
        yield Subject(folder, traits, store, dead, _DELIVERERS, servers=[first, second], disk=disk)


def _serve(stack: ExitStack, serve: type[Served]) -> Served:
    served = serve()  # type: ignore[call-arg]
    stack.callback(served.close)
    return served


def _work_disk(stack: ExitStack, folder: Path, traits: Traits) -> Path | None:
    if not traits.work_dir:
        return None
    disk = stack.enter_context(small_disk(folder / "work"))
    (folder / "work" / "runs").mkdir()
    return disk


KINDS = {
    "sqlite listen": Kind(_listening(disk="store"), _listen_on_sqlite, 60),
    "sqlite deliver": Kind(_delivering(disk="store"), _deliver_on_sqlite, 60),
    "postgresql listen": Kind(_listening("PostgreSQL"), _on_server(ServedPostgreSQL, _LISTENERS), 75),
    "postgresql deliver": Kind(_delivering("PostgreSQL"), _on_server(ServedPostgreSQL, _DELIVERERS), 90),
    "mariadb listen": Kind(_listening("MariaDB"), _on_server(ServedMariaDB, _LISTENERS), 75),
    "mariadb deliver": Kind(_delivering("MariaDB"), _on_server(ServedMariaDB, _DELIVERERS), 90),
    "rabbitmq listen": Kind(
        _listening("RabbitMQ", sql=False, leases={"worker": 3 * _HEARTBEAT + LEASE}), _listen_on_rabbitmq, 75, lane=1
    ),
    "rabbitmq intake": Kind(_taking_in("intake", "RabbitMQ", "PostgreSQL"), _take_in_from_rabbitmq, 120, lane=1),
    "bus intake": Kind(_taking_in("bus listener", "PostgreSQL"), _take_in_from_bus, 90, lane=1),
    "two databases": Kind(_delivering("PostgreSQL", "MariaDB"), _deliver_on_two_databases, 120, lane=1),
    "spark": Kind(CLUSTER, on_cluster, 300, lane=2),
    "lake": Kind(LAKE, on_lake, 300, lane=2),
    "airflow": Kind(AIRFLOW, on_airflow, 600, lane=3),
}
