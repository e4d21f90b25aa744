"""send: what is stored, when it is due, and what is refused before anything is stored."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from homing.delivery import PipelineStores
from tests.unit.cli.conftest import Shell


def test_contents_keep_their_type(homing: Shell, stores: PipelineStores) -> None:
    homing("send", '{"a": 1}', "5", '"text"')
    homing("send", "5", "--text")

    assert [message.content for message in stores.store.claim(10)] == [{"a": 1}, 5, "text", "5"]


def test_everything_that_can_be_written_on_a_message(homing: Shell, stores: PipelineStores) -> None:
    at = "2099-12-01 02:00 Europe/Berlin"
    (row,) = homing.json(
        "send", "1", "--id", "m", "--header", "a=b=c", "--at", at, "--priority", "3", "--correlation-id", "x"
    )

    (message,) = stores.store.browse()

    assert row["id"] == message.id == "m"
    assert (message.headers, message.priority, message.correlation_id) == ({"a": "b=c"}, 3, "x")
    assert message.scheduled_at == datetime(2099, 12, 1, 1, tzinfo=timezone.utc)


def test_a_file_has_one_message_per_line(homing: Shell, stores: PipelineStores, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text('{"n": 1}\n\n{"n": 2}\n')

    assert len(homing.json("send", "--file", str(tmp_path / "orders.jsonl"))) == 2
    assert stores.store.count()["available"] == 2


def test_an_id_the_store_knows_is_not_stored_again(homing: Shell, stores: PipelineStores) -> None:
    homing("send", "1", "--id", "m")
    homing("send", "2", "--id", "m")

    assert [message.content for message in stores.store.browse()] == [1]


def test_a_dry_run_stores_nothing(homing: Shell, stores: PipelineStores) -> None:
    answer = homing("send", "1", "2", "--dry-run")

    assert (answer.code, "would store 2" in answer.err) == (0, True)
    assert sum(stores.store.count().values()) == 0


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        ((), "no messages given"),
        (("1", "oops"), "message 2 is not JSON"),
        (("1", "2", "--id", "m"), "--id works for one message only"),
        (("1", "--header", "a"), "NAME=VALUE"),
        (("1", "--at", "tomorrow"), "invalid time 'tomorrow'"),
        (("--file", "/nowhere/at/all"), "cannot read"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_stored(
    homing: Shell, stores: PipelineStores, argv: tuple[str, ...], error: str
) -> None:
    answer = homing("send", *argv)

    assert (answer.code, answer.out) == (2, "")
    assert error in answer.err
    assert sum(stores.store.count().values()) == 0
