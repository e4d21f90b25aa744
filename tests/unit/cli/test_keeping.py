"""purge, audit and bench-claim."""

from __future__ import annotations

import pytest

from homing.delivery import PipelineStores
from tests.unit.cli.conftest import Shell
from tests.unit.delivery.conftest import Pipeline


def test_audit_proves_the_books_per_store_destination_and_batch(
    homing: Shell, chain: str, dead: str, pipeline: Pipeline
) -> None:
    homing("send", "1")

    sheet = homing.json("audit", "--chain", chain)

    sums = {(row["of"], row["name"]): row for row in sheet["sums"]}
    assert sheet["balanced"] is True
    assert (sums["store", "orders"]["accepted"], sums["store", "orders"]["dead_lettered"]) == (2, 1)
    assert (sums["destination", "lake"]["delivered"], sums["destination", "crm"]["dead_lettered"]) == (1, 1)
    assert (sums["batch", "run"]["dead_lettered"], sums["batch", "(not claimed yet)"]["waiting"]) == (1, 1)


def test_audit_ends_with_1_and_names_the_messages_that_are_nowhere(homing: Shell, pipeline: Pipeline) -> None:
    batch, (lost,) = pipeline.claimed("run", 1)
    for held in batch.held():
        held.store.settle_batch(held.lease, [lost])  # acknowledged although nobody delivered it

    answer = homing("audit", "--destinations", "lake,crm", "-o", "json")

    assert answer.code == 1
    assert answer.data["unaccounted"] == [lost]
    assert f"message {lost} is unaccounted for" in answer.err
    unbalanced = {(row["of"], row["name"]) for row in answer.data["sums"] if not row["balanced"]}
    assert unbalanced == {("store", "orders"), ("destination", "lake"), ("destination", "crm"), ("batch", "run")}


def test_audit_must_know_the_destinations(homing: Shell) -> None:
    answer = homing("audit")

    assert (answer.code, "--chain" in answer.err) == (2, True)


def test_purge_removes_what_is_finished_for_long_enough(homing: Shell, stores: PipelineStores) -> None:
    stores.store.store_many([1, 2])
    stores.store.settle(stores.store.claim(1))

    assert homing.json("purge", "--older-than", "PT1H")["removed"] == 0
    assert homing.json("purge", "--older-than", "PT1H", "--dry-run")["would_remove"] == 0
    assert homing.json("purge", "--older-than", "0", "--dry-run")["would_remove"] == 1
    assert homing.json("purge", "--older-than", "0")["removed"] == 1
    assert stores.store.count()["available"] == 1


@pytest.mark.parametrize("name", ["orders", "orders_failures"])
def test_what_a_pipeline_gave_up_is_not_purged_before_it_is_a_dead_letter(
    homing: Shell, stores: PipelineStores, pipeline: Pipeline, name: str
) -> None:
    pipeline.claimed("run", 1)
    store = stores.store if name == "orders" else stores.failures
    store.store("crashed")
    store.dead_letter(store.claim(1)[0], reason="crashed")

    answer = homing("purge", "--state", "dead", "--older-than", "0", "--store", store.place[0] + f"?store={name}")

    assert (answer.code, "no other copy" in answer.err, store.count()["dead"]) == (2, True, 1)


def test_a_bad_duration_removes_nothing(homing: Shell) -> None:
    assert homing("purge", "--older-than", "soon").code == 2


def test_bench_claim_measures_in_a_store_of_its_own_and_leaves_it_empty(homing: Shell, stores: PipelineStores) -> None:
    stores.store.store("mine")
    assert homing("bench-claim", "--messages", "50", "--dry-run").code == 0
    assert "bench" not in stores.store.access.siblings()

    measured = homing.json("bench-claim", "--messages", "50", "--batch-size", "20")

    assert measured["messages"] == 50
    assert measured["claimed_per_second"] > 0
    with stores.store.sibling("bench") as bench:
        assert sum(bench.count().values()) == 0
    assert stores.store.count()["available"] == 1


def test_bench_claim_touches_no_message_of_a_pipeline_that_is_called_so(homing: Shell, stores: PipelineStores) -> None:
    with stores.store.sibling("bench") as bench:
        bench.store("of a pipeline")

        answer = homing("bench-claim", "--messages", "5")

        assert (answer.code, "holds 1 messages" in answer.err) == (2, True)
        assert bench.count()["available"] == 1
