"""failures, replay and dead-letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from homing.delivery import PipelineStores
from homing.failure import dead_letter_id
from tests.unit.cli.conftest import Shell
from tests.unit.delivery.conftest import Pipeline, waiting


def test_failures_are_grouped_by_handler_and_error(homing: Shell, pipeline: Pipeline, dead: str) -> None:
    batch, (other,) = pipeline.claimed("run 2", {"number": 2})
    pipeline.failed("run 2", other, "crm")
    pipeline.failed("run 2", other, "lake")
    batch.settle()

    groups = {row["group"]: row for row in homing.json("failures")}

    assert {name: (row["messages"], row["dead"]) for name, row in groups.items()} == {
        "crm: ValueError": (2, 1),
        "lake: ValueError": (1, 0),
    }
    assert groups["crm: ValueError"]["error"] == "no good"
    assert "skips lake" in groups["crm: ValueError"]["a_replay"]


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ((), 1),
        (("--batch", "run"), 1),
        (("--batch", "another"), 0),
        (("--destination", "crm"), 1),
        (("--destination", "lake"), 0),
        (("--error-group", "crm: ValueError"), 1),
        (("--error-group", "crm: KeyError"), 0),
        (("--since", "PT1H"), 1),
        (("--until", "PT1H"), 0),
        (("unknown",), 0),
    ],
)
def test_failures_can_be_narrowed_down(homing: Shell, dead: str, argv: tuple[str, ...], found: int) -> None:
    assert len(homing.json("failures", "--messages", *argv)) == found


def test_a_dry_run_of_a_replay_says_what_would_happen_and_delivers_nothing(
    homing: Shell, chain: str, stores: PipelineStores, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")

    answer = homing("replay", dead, "--chain", chain, "--dry-run", "-o", "json")

    assert (answer.code, answer.data[0]["messages"], answer.data[0]["a_replay"]) == (
        0,
        1,
        "tries crm again, skips lake where that is done",
    )
    assert stores.dead_letters.count()["available"] == 1


def test_a_chain_that_only_spark_can_run_is_refused_and_nothing_is_held(
    homing: Shell, stores: PipelineStores, dead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from homing import HandlerChain, destination\n@destination(dataframe=True)\ndef crm(messages): ...\n"
    (tmp_path / "frames.py").write_text(f"{code}chain = HandlerChain('orders', destinations_flow=[crm])\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    answer = homing("replay", dead, "--chain", "frames:chain")

    assert answer.code == 2
    assert "runs on Spark only" in answer.err
    assert stores.dead_letters.count()["available"] == 1


def test_a_replay_without_a_connection_of_the_chain_is_refused_before_anything_is_leased(
    homing: Shell, stores: PipelineStores, dead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
from homing import HandlerChain, MessageContext, destination
@destination
def lake(ctx: MessageContext): ...
@destination(connections=["crm_api"])
def crm(ctx: MessageContext):
    return ctx.connection("crm_api").host
chain = HandlerChain("orders", destinations_flow=[lake, crm])
"""
    (tmp_path / "connected.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))

    answer = homing("replay", dead, "--chain", "connected:chain")
    assert answer.code == 2
    assert "there is no connection 'crm_api', which the destination 'crm' asks for" in answer.err
    assert stores.dead_letters.count()["available"] == 1
    assert homing("replay", dead, "--chain", "connected:chain", "--dry-run").code == 0

    monkeypatch.setenv("AIRFLOW_CONN_CRM_API", "http://crm")
    assert homing("replay", dead, "--chain", "connected:chain").code == 0
    assert stores.ledger.entries([dead])[dead]["crm"].result == "crm"


def test_a_replay_delivers_what_is_missing_and_skips_what_was_delivered(
    homing: Shell, chain: str, stores: PipelineStores, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")

    answer = homing("replay", "--error-group", "crm: ValueError", "--chain", chain, "--rate", "1000", "-o", "json")

    assert (answer.code, answer.data["delivered"], answer.data["outcomes"]) == (0, 1, {"delivered": 1})
    entries = stores.ledger.entries([dead])[dead]
    assert (entries["crm"].result, entries["lake"].deliveries, entries["lake"].result) == (201, 1, "ok")
    assert homing("audit", "--chain", chain).code == 0
    assert stores.dead_letters.count()["available"] == 0


@pytest.mark.parametrize("where", ["failed", "dead"])
def test_what_still_fails_stays_where_it_was_and_ends_with_1(
    homing: Shell, chain: str, stores: PipelineStores, where: str, request: pytest.FixtureRequest
) -> None:
    message_id = request.getfixturevalue(where)

    answer = homing("replay", "--all", "--chain", chain, "-o", "json")

    assert (answer.code, answer.data["still_failing"]) == (1, 1)
    store = stores.failures if where == "failed" else stores.dead_letters
    assert store.count()["available"] == 1
    assert stores.ledger.entries([message_id])[message_id]["crm"].error["message"] == "the CRM is down"
    assert homing.json("failures")[0]["group"] == "crm: ConnectionError"


def test_a_replay_of_nothing_in_particular_is_refused(homing: Shell, chain: str, dead: str) -> None:
    answer = homing("replay", "--chain", chain)

    assert (answer.code, "nothing selected to replay" in answer.err) == (2, True)


def test_what_somebody_else_replays_is_left_to_them(
    homing: Shell, chain: str, pipeline: Pipeline, failed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")
    pipeline.batch("another replay").reclaim([failed])

    answer = homing("replay", failed, "--chain", chain, "-o", "json")

    assert (answer.code, answer.data["replayed"]) == (1, 0)
    assert "replayed by another process" in answer.err


def test_dead_letter_moves_a_waiting_message_with_its_reason(homing: Shell, chain: str, stores: PipelineStores) -> None:
    homing("send", "1", "--id", "m")
    assert homing("dead-letter", "m", "--reason", "sent twice", "--dry-run").code == 0
    assert stores.store.count()["available"] == 1

    answer = homing("dead-letter", "m", "--reason", "sent twice")

    (letter,), ((_, _, ref),) = stores.dead_letters.browse(), stores.store.view.states(["m"])
    assert (answer.code, letter.id, letter.dead_letter_reason) == (0, dead_letter_id("orders", ref.name), "GivenUp")
    assert "sent twice" in str(letter.dead_letter_description)
    assert stores.store.view.present(["m"]) == set()
    assert homing("audit", "--chain", chain).code == 0


def test_dead_letter_takes_a_message_out_of_the_failure_store(
    homing: Shell, stores: PipelineStores, failed: str
) -> None:
    assert homing("dead-letter", failed, "--reason", "no use").code == 0

    assert waiting(stores) == set()
    assert stores.dead_letters.count()["available"] == 1


def test_what_is_finished_unknown_or_held_is_not_dead_lettered(homing: Shell, pipeline: Pipeline) -> None:
    _, (held,) = pipeline.claimed("run", 1)

    answer = homing("dead-letter", held, "unknown", "--reason", "x")

    assert (answer.code, answer.err.count("or is leased")) == (1, 2)
    assert pipeline.stores.dead_letters.count()["available"] == 0


@pytest.mark.parametrize(
    "which",
    [("nobody",), ("--error-group", "crm: KeyError"), ("--destination", "cmr"), ("--batch", "b"), ("--until", "PT1H")],
    ids=lambda which: which[0],
)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["done", "dry"])
def test_a_replay_of_what_has_not_failed_says_so_and_ends_with_1(
    homing: Shell, chain: str, dead: str, which: tuple[str, ...], dry: tuple[str, ...]
) -> None:
    answer = homing("replay", *which, "--chain", chain, *dry)

    assert answer.code == 1
    assert ("nobody has not failed" if which == ("nobody",) else "no failed message in store") in answer.err


def test_an_id_that_has_not_failed_is_named_and_the_others_are_replayed(
    homing: Shell, chain: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")

    answer = homing("replay", dead, "nobody", "--chain", chain, "-o", "json")

    assert (answer.code, answer.data["delivered"]) == (1, 1)
    assert "message nobody has not failed" in answer.err
    assert dead not in answer.err


def test_a_replay_of_everything_is_done_when_nothing_has_failed(homing: Shell, chain: str) -> None:
    homing("send", "1")

    assert homing("replay", "--all", "--chain", chain).code == 0
