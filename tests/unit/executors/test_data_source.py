"""The data source `homing` without Spark: what its readers and writers do where Spark calls them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNull, LessThan, StringContains
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from homing import Message, open_store
from homing.errors import ConfigurationError, UnsupportedError
from homing.ledger import Fence
from homing.spark.datasource import HomingDataSource
from homing.spark.engine import Pipeline
from homing.spark.options import StoreAddress
from homing.spark.reader import StoreReader
from homing.spark.task import Task
from homing.spark.writer import StoreWriter
from homing.store import DEDUPLICATION
from homing.stores.sql import SqlStore


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/orders.db?store=orders"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    with open_store(url) as opened:
        assert isinstance(opened, SqlStore)
        yield opened


def rows(reader: Any, *args: Any) -> list[dict[str, Any]]:
    parts = reader.partitions(*args)
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def source(**options: str) -> HomingDataSource:
    return HomingDataSource(options)


# -- reading ---------------------------------------------------------------------------------------------------


def test_what_waits_is_read_in_ranges_without_claiming_it(store: SqlStore, url: str) -> None:
    ids = store.store_many(range(100))
    store.acknowledge(store.claim(1)[0])
    store.claim(10)
    before = store.count()
    reader = source(url=url, partitions="3").reader(t.StructType())

    assert len(reader.partitions()) == 3
    assert sorted(row["id"] for row in rows(reader)) == sorted(ids[1:])
    assert store.count() == before


def test_messages_with_much_and_with_little_written_on_them_are_read_whole(
    store: SqlStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.delivery.arrow.page._PAGE", 3)
    rich = Message("rich", {"n": 4}, correlation_id="c", subject="s", headers={"k": "v"}, priority=2)
    store.store_many([*(Message(f"m{number}", number) for number in range(7)), rich, Message("last", "text")])

    found = {row["id"]: row for row in rows(source(url=url, partitions="1").reader(t.StructType()))}

    assert list(found) == [*(f"m{number}" for number in range(7)), "rich", "last"]
    assert (found["rich"]["correlation_id"], found["rich"]["subject"], found["rich"]["priority"]) == ("c", "s", 2)
    assert (found["rich"]["headers"], found["rich"]["message"]) == ('{"k":"v"}', '{"n":4}')
    for plain in ("m0", "m6", "last"):  # of a page of its like, and beside the other
        assert found[plain]["correlation_id"] is found[plain]["headers"] is found[plain]["batch_id"] is None
    assert (found["last"]["message"], found["last"]["encoding"]) == ("text", "text")


def test_a_batch_of_which_some_are_finished_is_cut_into_parts_of_what_is_left(store: SqlStore, url: str) -> None:
    store.store_many(range(100))
    claimed = store.claim(100, batch_id="run")
    store.settle(claimed[:90])

    reader = source(url=url, batch="run", partitions="2").reader(t.StructType())

    sizes = [sum(batch.num_rows for batch in reader.read(part)) for part in reader.partitions()]
    assert sizes == [5, 5]


def test_failed_dead_and_all_messages_are_read_when_asked_for(store: SqlStore, url: str) -> None:
    store.store_many([Message("waits", 1), Message("dead", 2), Message("done", 3)])
    waits, dead, done = store.claim(3)
    store.dead_letter(dead, reason="rotten")
    store.acknowledge(done)
    with store.sibling("orders_failures") as failures:
        failures.store(4, id="failed")

    def read(messages: str) -> list[str]:
        return sorted(row["id"] for row in rows(source(url=url, messages=messages).reader(t.StructType())))

    assert read("waiting") == [waits.id]
    assert read("failed") == ["failed"]
    assert read("dead") == ["dead"]
    assert read("all") == ["dead", "done", "waits"]


def test_the_database_leaves_out_what_a_filter_excludes_and_spark_looks_again(store: SqlStore, url: str) -> None:
    store.store_many([Message(f"m{n}", n, priority=n, subject="a" if n % 2 else None) for n in range(10)])
    reader = source(url=url).reader(t.StructType())
    assert isinstance(reader, StoreReader)
    asked = [
        GreaterThanOrEqual(("priority",), 3),
        LessThan(("id",), "m9"),
        IsNull(("subject",)),
        StringContains(("id",), "4"),
    ]

    assert list(reader.pushFilters(asked)) == asked
    assert [row["id"] for row in rows(reader)] == ["m4", "m6", "m8"]

    reader = source(url=url).reader(t.StructType())
    reader.pushFilters([In(("id",), ("m1", "m5")), EqualTo(("subject",), "a")])
    assert [row["id"] for row in rows(reader)] == ["m1", "m5"]


def test_an_empty_store_has_no_parts(url: str, store: SqlStore) -> None:
    assert source(url=url).reader(t.StructType()).partitions() == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, 'needs the option "url"'),
        ({"messages": "gone"}, "one of waiting, failed, dead, all"),
        ({"partitions": "none"}, "must be an integer >= 1, got 'none'"),
        ({"url": "memory://orders"}, "lives in one process"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, str], complaint: str, url: str) -> None:
    options = options and {"url": url, **options}
    with pytest.raises(ConfigurationError, match=complaint):
        source(**options).reader(t.StructType())


# -- streaming -------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_where_it_was_and_keeps_to_its_limit(store: SqlStore, url: str) -> None:
    store.store_many(range(10))
    reader = source(url=url, max_rows="4").streamReader(t.StructType())
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)

    start, seen = reader.initialOffset(), []
    for _ in range(4):
        end = reader.latestOffset(start, ReadMaxRows(4))
        seen.append([row["message"] for row in rows(reader, start, end)])
        start = end

    assert seen == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9"], []]
    store.store(10)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [row["message"] for row in rows(reader, start, end)] == ["10"]


def test_a_stream_may_begin_with_what_comes_next(store: SqlStore, url: str) -> None:
    store.store_many(range(3))
    reader = source(url=url, start="latest").streamReader(t.StructType())
    start = reader.initialOffset()
    store.store("new")
    assert [row["message"] for row in rows(reader, start, reader.latestOffset(start, ReadAllAvailable()))] == ["new"]


@pytest.fixture(params=["postgresql", "mariadb"])
def busy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    """A store that many may write to at once."""
    monkeypatch.setattr("homing.stores.sql.commit_horizon._MOMENT", 0)  # in which MariaDB may not have come to it
    with open_store(f"{request.getfixturevalue(request.param).empty_database()}?store=orders") as opened:
        assert isinstance(opened, SqlStore)
        yield opened


def stream(store: SqlStore, **options: str) -> Any:
    url = store._database._engine.url.render_as_string(hide_password=False)
    return source(url=url, store="orders", **options).streamReader(t.StructType())


def read_on(reader: Any, start: dict[str, int]) -> tuple[dict[str, int], list[str]]:
    end = reader.latestOffset(start, ReadAllAvailable())
    return end, [row["message"] for row in rows(reader, start, end)]


def test_a_stream_skips_nothing_that_is_committed_after_higher_numbers(busy: SqlStore) -> None:
    busy.store("first")
    reader = stream(busy)
    start, seen = read_on(reader, reader.initialOffset())
    assert seen == ["first"]

    with busy._database._engine.connect() as late:
        busy.store("late", transaction=late)
        busy.store("early")
        start, seen = read_on(reader, start)
        assert seen == []
        late.commit()

    start, seen = read_on(reader, start)
    assert seen == ["late", "early"]
    assert read_on(reader, start)[1] == []


def test_a_transaction_that_is_rolled_back_holds_a_stream_up_no_longer(busy: SqlStore) -> None:
    reader = stream(busy)
    with busy._database._engine.connect() as other:
        busy.store("never", transaction=other)
        busy.store("first")
        other.rollback()
    assert read_on(reader, reader.initialOffset())[1] == ["first"]


def test_a_stream_of_what_comes_next_waits_for_who_is_writing_and_skips_nothing(busy: SqlStore) -> None:
    busy.store("before")
    reader = stream(busy, start="latest")
    with busy._database._engine.connect() as late, ThreadPoolExecutor(1) as pool:
        busy.store("late", transaction=late)
        begun = pool.submit(reader.initialOffset)
        wait([begun], timeout=2)  # PostgreSQL's is not done: it waits
        late.commit()
        start = begun.result(60)

    busy.store("next")
    assert read_on(reader, start)[1] == ["late", "next"]


@pytest.mark.parametrize("busy", ["postgresql"], indirect=True)
def test_writers_that_come_and_go_do_not_hold_a_stream_up(busy: SqlStore) -> None:
    ended = threading.Event()

    def write() -> int:
        number = 0
        while not ended.is_set():
            busy.store(number)
            number += 1
        return number

    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write) for _ in range(3)]
        reader = stream(busy)
        start, seen = reader.initialOffset(), 0
        try:
            for _ in range(10):
                start, more = read_on(reader, start)
                seen += len(more)
        finally:
            ended.set()
        assert seen
        stored = sum(each.result() for each in writing)
    assert seen + len(read_on(reader, start)[1]) == stored


def test_a_store_without_numbers_cannot_be_streamed_and_says_so() -> None:
    with pytest.raises(UnsupportedError, match="cannot be read as a stream"):
        source(url="amqp://127.0.0.1/?store=orders").streamReader(t.StructType())


# -- writing ---------------------------------------------------------------------------------------------------

CONTENTS = t.StructType([t.StructField("message", t.StringType())])
WITH_IDS = t.StructType([t.StructField("id", t.StringType()), *CONTENTS.fields])


def batch(*rows: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pylist(list(rows))])


def test_a_task_that_is_tried_again_stores_nothing_twice(store: SqlStore, url: str) -> None:
    writer = source(url=url).writer(WITH_IDS, overwrite=False)
    for _ in range(2):
        assert writer.write(batch({"id": "a", "message": "1"}, {"id": "b", "message": "2"})).messages == 2  # type: ignore
    assert store.count()["available"] == 2


def test_rows_without_an_id_get_one_that_another_try_makes_again_in_whatever_order(store: SqlStore, url: str) -> None:
    writer = source(url=url).writer(CONTENTS, overwrite=False)
    one, two = {"message": "one"}, {"message": "two"}
    writer.write(batch(one, one, two))
    writer.write(batch(two, one, one))
    assert sorted(message.content for message in store.claim(10)) == ["one", "one", "two"]
    another = source(url=url).writer(CONTENTS, overwrite=False)
    another.write(batch(one))
    assert [message.content for message in store.claim(10)] == ["one"]


def test_a_store_can_be_copied_into_another(store: SqlStore, url: str, tmp_path: Path) -> None:
    original = [
        Message("a", {"n": 1}, headers={"h": [1]}, subject="s", priority=3, correlation_id="c"),
        Message("b", b"bytes"),
        Message("c", "123"),
    ]
    store.store_many(original)
    reader = source(url=url).reader(t.StructType())
    schema = t.StructType([t.StructField(name, t.StringType()) for name in rows(reader)[0]])
    target = f"sqlite:///{tmp_path}/copy.db?store=copy"
    writer = source(url=target).writer(schema, overwrite=False)
    for part in reader.partitions():
        writer.write(reader.read(part))

    with open_store(target) as copy:
        found = {message.id: message for message in copy.claim(10)}
    for message in original:
        twin = found[message.id]
        for field in ("content", "headers", "subject", "priority", "correlation_id"):
            assert getattr(twin, field) == getattr(message, field)


def test_structs_and_maps_become_json(store: SqlStore, url: str) -> None:
    kind = pa.struct([("n", pa.int32()), ("tags", pa.list_(pa.string()))])
    table = pa.table(
        {
            "message": pa.array([{"n": 1, "tags": ["x"]}], kind),
            "headers": pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())),
        }
    )
    schema = t.StructType(
        [
            t.StructField("message", t.StructType([t.StructField("n", t.IntegerType())])),
            t.StructField("headers", t.MapType(t.StringType(), t.StringType())),
        ]
    )
    source(url=url).writer(schema, overwrite=False).write(iter(table.to_batches()))
    (message,) = store.claim(1)
    assert (message.content, message.headers) == ({"n": 1, "tags": ["x"]}, {"k": "v"})


def test_a_map_is_an_object_wherever_it_stands_be_it_empty_and_an_array_of_pairs_is_an_array(
    store: SqlStore, url: str
) -> None:
    tags = pa.map_(pa.string(), pa.int32())
    pair = pa.struct([("k", pa.string()), ("v", pa.int32())])
    kind = pa.struct([("tags", tags), ("many", pa.list_(tags)), ("pairs", pa.list_(pair)), ("none", tags)])
    full = {"tags": [("a", 1)], "many": [[("b", 2)], []], "pairs": [{"k": "c", "v": 3}], "none": None}
    empty = {"tags": [], "many": [], "pairs": [], "none": None}
    schema = t.StructType([t.StructField("message", t.MapType(t.StringType(), t.IntegerType()))])
    writer = source(url=url).writer(schema, overwrite=False)
    writer.write(iter(pa.table({"message": pa.array([full, empty], kind)}).to_batches()))
    writer.write(iter(pa.table({"message": pa.array([[], [("x", 1)]], tags)}).to_batches()))

    assert [message.content for message in store.claim(10)] == [
        {"tags": {"a": 1}, "many": [{"b": 2}, {}], "pairs": [{"k": "c", "v": 3}], "none": None},
        {"tags": {}, "many": [], "pairs": [], "none": None},
        {},
        {"x": 1},
    ]


def test_what_cannot_be_written_is_refused_before_any_row(url: str) -> None:
    wrong = t.StructType([*CONTENTS.fields, t.StructField("colour", t.StringType())])
    with pytest.raises(ConfigurationError, match="colour"):
        source(url=url).writer(wrong, overwrite=False)
    with pytest.raises(ConfigurationError, match="append"):
        source(url=url).writer(CONTENTS, overwrite=True)
    with pytest.raises(ConfigurationError, match="column `id`"):
        source(url=url).streamWriter(CONTENTS, overwrite=False)


def test_a_store_that_cannot_tell_ids_apart_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/orders.db?store=orders"
    frame = pa.RecordBatch.from_pydict({"id": ["m"], "message": ["text"]})
    schema = t.StructType([t.StructField("id", t.StringType()), t.StructField("message", t.StringType())])
    writer = StoreWriter({"url": url}, schema, overwrite=False)
    writer.write(iter([frame]))
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []

    monkeypatch.setattr(SqlStore, "features", SqlStore.features - {DEDUPLICATION})  # as RabbitMQ and Service Bus
    writer.write(iter([frame]))

    assert "twice" in caplog.text


def test_what_travels_to_executors_shows_no_password_when_it_is_printed() -> None:
    url = "postgresql://ann:s3cret@host/db?store=orders"
    travelling = StoreAddress.of({"url": url}), Task("chain:chain", url, Fence("run", "process", "me"))

    assert "s3cret" not in repr((*travelling, Pipeline("chain:chain", url, url)))
