"""Every command that changes something leaves who, when and why; `homing operations` lists them."""

from __future__ import annotations

import os
import pwd
import threading
from datetime import datetime, timedelta, timezone

import pytest

from homing import open_store
from homing.delivery import PipelineStores
from homing.delivery.operations import ApprovalRule, Operator, declare
from homing.operation_log import OperationEvent
from homing.stores.sql import SqlStore
from tests.unit.cli.conftest import Shell
from tests.unit.delivery.conftest import Pipeline

ME = pwd.getpwuid(os.getuid()).pw_name


def test_a_replay_is_an_operation(homing: Shell, chain: str, failed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM", "up")

    homing.json("replay", "--destination", "crm", "--chain", chain, "--reason", "the CRM is back")

    (one,) = homing.json("operations")
    assert one["who"].startswith(f"{ME}@")
    assert (one["what"], one["via"], one["why"], one["messages"]) == ("replay", "homing", "the CRM is back", 1)
    assert (one["state"], one["selection"]) == ("done", {"destination": "crm"})
    assert one["outcome"] == {"replayed": 1, "delivered": 1, "still_failing": 0}


def test_a_dead_letter_is_an_operation(homing: Shell, stores: PipelineStores) -> None:
    stores.store.store({"number": 1}, id="one")

    homing.json("dead-letter", "one", "other", "--reason", "sent by mistake")

    (one,) = homing.json("operations")
    assert (one["what"], one["why"], one["messages"]) == ("dead-letter", "sent by mistake", 2)
    assert (one["selection"], one["outcome"]) == ({"ids": ["one", "other"]}, {"dead_lettered": 1})


def test_a_purge_is_an_operation(homing: Shell, stores: PipelineStores) -> None:
    stores.store.store({"number": 1})
    stores.store.settle(stores.store.claim(1))

    assert homing.json("purge", "--older-than", "0")["removed"] == 1

    (one,) = homing.json("operations")
    assert (one["what"], one["outcome"]) == ("purge", {"removed": 1})
    assert one["selection"] == {"state": "acknowledged", "older_than": 0.0}


def test_a_dry_run_is_none(homing: Shell, chain: str, failed: str) -> None:
    homing("replay", failed, "--chain", chain, "--dry-run")
    homing("dead-letter", failed, "--reason", "x", "--dry-run")
    homing("purge", "--dry-run")

    assert homing.json("operations") == []


def test_a_replay_that_raises_has_failed(
    homing: Shell, chain: str, failed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("homing.cli.failures.replay_in_process", die)

    with pytest.raises(RuntimeError):
        homing("replay", failed, "--chain", chain)

    assert [(one["what"], one["state"]) for one in homing.json("operations")] == [("replay", "failed")]


def test_operations_can_be_narrowed_down_by_time(homing: Shell, stores: PipelineStores) -> None:
    stores.store.count()  # which makes it
    homing("purge")
    later = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()

    assert len(homing.json("operations", "--since", "PT1H")) == 1
    assert homing.json("operations", "--since", later) == []


def test_a_store_in_no_database_keeps_no_operations(homing: Shell) -> None:
    answer = homing("operations", "--store", "memory://operations")

    assert (answer.code, "keeps no record of operations" in answer.err) == (2, True)


@pytest.fixture
def many(pipeline: Pipeline) -> list[str]:
    """Three messages that the CRM refused."""
    batch, ids = pipeline.claimed("run", 1, 2, 3)
    for message_id in ids:
        pipeline.delivered("run", message_id, "lake")
        pipeline.failed("run", message_id, "crm")
    batch.settle()
    return ids


def test_a_replay_that_needs_an_approval_is_not_made_here(
    homing: Shell, chain: str, stores: PipelineStores, many: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")
    declare(stores.store, ApprovalRule(2, 3600, "orders_replay"), by=Operator("DAG orders_replay", "airflow"))

    refused = homing("replay", "--all", "--chain", chain)
    allowed = [homing("replay", message_id, "--chain", chain) for message_id in many]

    assert (refused.code, "orders_replay" in refused.err, "need an approval" in refused.err) == (2, True, True)
    assert [answer.code for answer in allowed] == [0, 0, 2]  # one after the other counts like all at once
    assert stores.failures.count()["available"] == 1


def test_of_replays_at_once_no_more_are_made_than_are_allowed(database: str) -> None:
    allowed, ready = [], threading.Barrier(4)

    def ask(number: int) -> None:
        with open_store(f"{database}?store=orders") as store:
            assert isinstance(store, SqlStore)
            kept = store.operations()
            kept.latest("rule")  # the table is there
            ready.wait(60)
            event = OperationEvent(f"run {number}", "begun", "replay", "ann", "airflow", messages=2)
            allowed.append(kept.append_within(event, 5, 3600))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(allowed) == [False, False, True, True]
