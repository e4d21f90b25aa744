"""The chaos run, short; and its checker and its nemesis, which must see what is wrong and leave nothing out."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chaos import __main__ as harness
from chaos.checker import Report, check, table
from chaos.destination import MODES, Destination, DestinationError, fault_of
from chaos.harms import Harm
from chaos.inspection import Inspector, Letter
from chaos.kinds import KINDS, Kind
from chaos.matrix import ROWS, as_markdown, explained, harms_of
from chaos.messages import content_of, id_of, is_unwanted
from chaos.nemesis import Nemesis
from chaos.run import run
from chaos.story import BEGAN, DROPPED, FAILED, KEPT, PASSED, TOOK, Event, Interruption, Story, Storybook
from chaos.subjects import Subject, Traits
from homing import open_store
from homing.failure import WORKER_CRASH

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "chaos.md"


def event(what: str, message_id: str, at: float, flow: str = "lake", detail: str = "") -> Event:
    return Event(at, 0.0, 7, what, message_id, flow, detail)


def failures(message_id: str, times: int, kind: str = "DestinationError", flow: str = "lake") -> list[Event]:
    return [
        event(what, message_id, at=10 * number + later, flow=flow, detail=kind if what == FAILED else "")
        for number in range(1, times + 1)
        for what, later in ((BEGAN, 0.0), (FAILED, 0.1))
    ]


#: `a` was delivered, `b` failed three times, `c` was dropped.
EVENTS = [
    *(event(what, "a", at, flow) for flow in ("lake", "crm") for what, at in ((BEGAN, 1.0), (TOOK, 1.1))),
    *failures("b", 3),
    event(DROPPED, "c", 3),
]
LETTER = Letter("b", "DestinationError")


def report(**changes: Any) -> Report:
    story = changes.pop("story", None) or Story(changes.pop("events", EVENTS), changes.pop("interruptions", ()))
    facts: dict[str, Any] = {
        "attempted": ["a", "b", "c"],
        "accepted": ["a", "b", "c"],
        "story": story,
        "delivered": story.delivered(),
        "letters": [LETTER],
        "flows": ("lake", "crm"),
        "listens": True,
        "tries": 3,
        "duplicates_allowed": 1,
        "stuck": [],
        "harms": {"kill worker": 1},
        "missed": {},
    }
    return check(**{**facts, **changes})


def test_a_message_is_delivered_everywhere_or_dropped_or_a_dead_letter_with_a_reason() -> None:
    assert report().good
    assert report(events=[*EVENTS, event(TOOK, "a", 2)]).good


def test_what_is_delivered_and_a_dead_letter_as_well_is_counted_and_not_lost() -> None:
    found = report(events=[*EVENTS, *failures("a", 3)], letters=[LETTER, Letter("a", "DestinationError")])

    assert (found.good, found.delivered, found.both) == (True, 1, 1)


def test_what_still_waits_is_stuck_and_not_lost() -> None:
    found = report(letters=[], stuck=["b"])
    at_a_broker = report(letters=[], stuck=["one available at the broker"])

    assert (found.good, found.lost, found.stuck) == (False, (), ("b",))
    assert (at_a_broker.good, at_a_broker.lost) == (False, ())


@pytest.mark.parametrize(
    "changes",
    [
        {"delivered": Counter({"a lake": 1})},
        {"letters": []},
        {"events": EVENTS[:-1]},
        {"delivered": Counter({"a lake": 1, "a crm": 1, "d lake": 1})},
        {"delivered": Counter({"a lake": 1, "a crm": 1, "a lake with the content of b": 1})},
        {"delivered": Counter({"a lake": 1, "a crm": 1, "c lake": 1})},
        {"delivered": Counter({"a lake": 2, "a crm": 2})},
        {"letters": [LETTER, Letter("a", "DestinationError")], "events": [*EVENTS, *failures("a", 3)],
         "duplicates_allowed": 0},
        {"letters": [LETTER, Letter("d", "DestinationError")], "events": [*EVENTS, *failures("d", 3)]},
        {"letters": [Letter("b", "DestinationError", fault=" with a changed content")]},
        {"letters": [Letter("b", "")]},
        {"stuck": ["a"]},
        {"attempted": [], "accepted": [], "events": [], "letters": []},
        {"harms": {"kill worker": 1, "fill disk": 0}},
    ],
    ids=[
        "half delivered", "lost", "not even dropped", "unexpected", "another's content", "delivered what is dropped",
        "too many duplicates", "too many in both places", "unexpected dead letter", "a changed dead letter",
        "no reason", "stuck", "nothing happened", "a harm not done",
    ],
)  # fmt: skip
def test_the_checker_sees_what_is_wrong(changes: dict[str, Any]) -> None:
    found = report(**changes)

    assert not found.good
    assert "NOT GOOD" in table({"a store": found})


def test_the_table_says_which_harms_were_done_and_which_not() -> None:
    text = table({"a store": report(harms={"kill worker": 2, "fill disk": 0}, missed={"fill disk": 3})})

    assert "done: kill worker 2\n  NOT DONE: fill disk (tried 3 times)" in text


# -- dead letters, by the story of the very message --------------------------------------------------------------


BOTH = {"lake": "DestinationError", "crm": "DestinationError"}
HELD = [event(BEGAN, "b", 10.0 * number) for number in range(1, 6)]


def interruptions(*moments: float, pid: int | None = 7) -> list[Interruption]:
    return [Interruption(at, at + 0.1, () if pid is None else (pid,), "kill worker") for at in moments]


@pytest.mark.parametrize(
    ("letter", "events", "harms", "listens", "believed"),
    [
        (Letter("b", "DestinationError"), failures("b", 3), (), True, True),
        (Letter("b", "chaos.destination.DestinationError"), failures("b", 3), (), True, True),
        (Letter("b", "DestinationError"), failures("b", 2), (), True, False),
        (Letter("b", "DestinationError"), failures("b", 2), (10.0, 20.0), True, False),
        (Letter("b", "DestinationError"), failures("b", 3, "OSError"), (), True, False),
        (Letter("b", "OSError"), failures("b", 3, "OSError"), (), True, True),
        (Letter("b", ""), failures("b", 3), (), True, False),
        (Letter("b", "StoreUnavailableError"), failures("b", 3), (), True, False),
        (Letter("b", "crashed"), HELD, (11.0, 21.0, 31.0, 41.0, 51.0), True, True),
        (Letter("b", "crashed"), HELD, (11.0, 21.0, 31.0, 41.0), True, False),
        (Letter("b", "crashed"), failures("b", 5), (), True, False),
        (Letter("b", "x", {"lake": "DestinationError"}), failures("b", 2), (10.0,), False, True),
        (Letter("b", "x", {"lake": "DestinationError"}), failures("b", 1), (), False, False),
        (Letter("b", "x", {"crm": "DestinationError"}), failures("b", 3), (), False, False),
        (Letter("b", "x", BOTH), [*failures("b", 1), *failures("b", 3, flow="crm")], (), False, True),
        (Letter("b", "x", BOTH), [*failures("b", 1), *failures("b", 2, flow="crm")], (), False, False),
        (Letter("b", "x", {"lake": WORKER_CRASH}), HELD, (11.0, 21.0, 31.0), False, True),
        (Letter("b", "x", {"lake": WORKER_CRASH}), failures("b", 3), (), False, False),
    ],
)
def test_a_dead_letter_is_believed_for_what_happened_to_its_very_message(
    letter: Letter, events: list[Event], harms: tuple[float, ...], listens: bool, believed: bool
) -> None:
    base = [one for one in EVENTS if one.message_id != "b"]
    found = report(events=[*base, *events], interruptions=interruptions(*harms), letters=[letter], listens=listens)

    assert bool(found.false) is not believed
    assert found.good is believed


def test_what_befalls_another_process_or_another_moment_is_no_part_of_the_story() -> None:
    events = [event(BEGAN, "b", 10.0), event(TOOK, "b", 10.2), event(BEGAN, "x", 30.0)]

    assert Story(events, interruptions(10.1)).interrupted("b") == 1
    assert Story(events, interruptions(10.1, pid=None)).interrupted("b") == 1
    assert Story(events, interruptions(10.1, pid=8)).interrupted("b") == 0
    assert Story(events, interruptions(25.0)).interrupted("b") == 0
    assert Story(events[:1], interruptions(25.0)).interrupted("b") == 1
    assert Story([events[0], events[2]], interruptions(31.0)).interrupted("b") == 0


def test_what_a_job_keeps_for_a_dataframe_destination_is_in_hand_until_its_story_goes_on() -> None:
    began = [event(BEGAN, "b", 10.0, "source"), event(PASSED, "b", 10.1, "source"), event(KEPT, "b", 10.2, "source")]
    others = [event(BEGAN, "x", 11.0, "source"), event(KEPT, "x", 11.1, "source")]
    written = event(PASSED, "b", 30.0)

    assert Story([*began[:2], *others], interruptions(25.0)).interrupted("b") == 0
    assert Story([*began, *others], interruptions(25.0)).interrupted("b") == 1
    assert Story([*began, *others, written], interruptions(25.0)).interrupted("b") == 1
    assert Story([*began, *others, written], interruptions(31.0)).interrupted("b") == 0


def test_a_content_is_compared_with_what_was_stored() -> None:
    assert fault_of("m5", content_of(5)) == ""
    assert fault_of("m4", content_of(5)) == " with the content of m5"
    assert fault_of("m5", {**content_of(5), "long": ""}) == " with a changed content"
    assert fault_of("m5", "m5") == " with a content that nobody stored"


def test_what_is_dead_in_its_store_and_not_in_the_dead_letter_store_is_stuck(tmp_path: Path) -> None:
    subject = wrong(tmp_path, "", patience=0)
    with open_store(subject.store) as store:
        store.store("a", id="m1")
        store.dead_letter(store.claim(1)[0], reason="crashed")

    assert Inspector(subject).still_there() == ["m1"]


# -- the nemesis -----------------------------------------------------------------------------------------------


TRAITS = Traits(roles={"generator": 0, "worker": 1}, leases={"worker": 1}, disk="store")


def nemesis(folder: Path, seed: str) -> Nemesis:
    subject = Subject(folder, TRAITS, "sqlite:///x.db", "sqlite:///y.db", {}, disk=folder)
    return Nemesis(seed, Destination(folder), subject, lambda _: None)


def test_every_deck_holds_every_harm_once(tmp_path: Path) -> None:
    names = [harm.name for harm, _ in nemesis(tmp_path, "7").deal()]

    assert sorted(names) == sorted(harms_of(TRAITS))
    assert {"kill generator", "stop worker", "destination late", "fill disk", "end leases"} < set(names)


def test_a_seed_is_the_order_of_all_harms(tmp_path: Path) -> None:
    def order(seed: str) -> list[tuple[str, float]]:
        drawn = nemesis(tmp_path, seed)
        return [(harm.name, number) for _ in range(2) for harm, number in drawn.deal()]

    assert order("7") == order("7") != order("8")


def test_a_harm_that_hits_nobody_is_not_done_and_comes_again(tmp_path: Path) -> None:
    hits = iter([None, False, True])
    drawn = nemesis(tmp_path, "7")
    drawn._kinds = [Harm("fill disk", lambda _: next(hits))]

    drawn.strike()
    assert (drawn.harms, drawn.missed, drawn.to_do) == ({"fill disk": 0}, {"fill disk": 1}, 1)
    drawn.strike()
    assert (drawn.harms, drawn.to_do) == ({"fill disk": 1}, 0)


def test_a_harm_to_the_destination_hits_only_if_it_was_called(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    for mode in MODES:
        destination.set_mode(mode)
        assert not destination.bitten()[mode]
        try:
            destination.take("m1", "lake", content_of(1))
        except (DestinationError, OSError, MemoryError) as error:
            assert mode in ("down", "late", type(error).__name__)  # noqa: PT017
        assert destination.bitten()[mode] == 1


def test_a_seed_says_which_attempts_the_destination_refuses(tmp_path: Path) -> None:
    def refusals(name: str) -> list[bool]:
        folder = tmp_path / name
        folder.mkdir()
        destination = Destination(folder)
        destination.set_seed("7")
        return [_refuses(destination, number) for number in range(7, 400, 20) for _ in range(3)]

    assert refusals("one") == refusals("two")
    assert {*refusals("three")} == {True, False}


def _refuses(destination: Destination, number: int) -> bool:
    try:
        destination.take(f"m{number}", "lake", content_of(number))
    except DestinationError:
        return True
    return False


# -- which harms are done to whom --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_harm_is_done_to_every_subject_or_it_is_said_why_not(name: str) -> None:
    for row in ROWS:
        assert row.names(KINDS[name].traits) or row.why_not


def test_the_documentation_shows_that_table() -> None:
    assert as_markdown({name: kind.traits for name, kind in KINDS.items()}) in PAGE.read_text()
    assert explained() in PAGE.read_text()


def test_no_limit_is_raised_and_no_worker_is_stopped_for_less_than_its_lease() -> None:
    texts = [path.read_text() for path in (ROOT / "chaos").rglob("*.py")]

    assert not any("max_deliveries=" in text for text in texts)
    for kind in KINDS.values():
        assert any(lease > 0 for lease in kind.traits.leases.values())


# -- the harness -----------------------------------------------------------------------------------------------


@dataclass
class WrongSubject(Subject):
    """Its one worker is wrong in a way that there is a name for."""

    which: str = ""

    def _commands(self) -> dict[str, list[str]]:
        loser = [sys.executable, "-m", "tests.chaos.loser", self.which, str(self.folder)]
        return {**super()._commands(), "worker": loser}


def wrong(folder: Path, which: str, patience: float) -> Subject:
    folder.mkdir(exist_ok=True)
    store, dead = (f"sqlite:///{folder}/chaos.db?store={name}" for name in ("orders", "orders_dead"))
    traits = Traits(roles={"worker": 1}, leases={}, listens=True, tries=3, clocks=())
    workers = {"generator": "generate"}
    return WrongSubject(
        folder, traits, store, dead, workers, calm=0.5, spell=0.5, patience=patience, which=which, pause=0.01
    )


def test_a_worker_that_acknowledges_before_it_delivers_is_found_out(tmp_path: Path) -> None:
    for attempt in range(6):  # the kill may just come when everything is delivered
        found = run("a loser", wrong(tmp_path / str(attempt), "lose", patience=1), 0.5, 4, only=("kill",))
        if found.lost:
            break

    assert found.harms == {"kill worker": found.harms["kill worker"]}
    assert found.lost
    assert not found.good
    assert f"LOST: {found.lost[0]}" in table({"a loser": found})


def test_what_it_loses_it_loses_to_the_nemesis(tmp_path: Path) -> None:
    assert run("a loser", wrong(tmp_path, "lose", patience=30), 0, 4, only=("nothing",)).good


def test_a_worker_that_buries_what_it_never_tried_is_found_out(tmp_path: Path) -> None:
    found = run("a digger", wrong(tmp_path, "bury", patience=30), 0, 4, only=("nothing",))

    assert not found.lost
    assert found.false[0].startswith("m")
    assert not found.good


def test_a_worker_that_changes_a_dead_letter_is_found_out(tmp_path: Path) -> None:
    found = run("a forger", wrong(tmp_path, "forge", patience=30), 0, 4, only=("nothing",))

    assert any("with a changed content" in one for one in found.unexpected)
    assert not found.good


def test_a_subject_that_cannot_be_run_has_failed_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def broken(_folder: Path, _traits: Traits) -> Iterator[Subject]:
        raise RuntimeError("no such server")
        yield

    @contextmanager
    def missing(_folder: Path, _traits: Traits) -> Iterator[Subject]:
        pytest.skip("not installed")
        yield

    for name, make in (("spark", broken), ("airflow", missing)):
        monkeypatch.setitem(KINDS, name, Kind(TRAITS, make, 1))
    monkeypatch.setattr(sys, "argv", ["chaos", "--duration", "1", "--subjects", "spark,airflow"])

    assert harness.main() == 1

    end = capsys.readouterr().out.rpartition("accepted")[2]
    assert "RuntimeError: no such server" in end
    assert "Skipped: not installed" in end
    assert "NOT GOOD" in end


@pytest.mark.parametrize("asked", ["sqlite,sprak", "", "sqlite,"])
def test_a_subject_that_there_is_not_is_refused(asked: str) -> None:
    with pytest.raises(ValueError, match=r"none of the subjects: sqlite listen, .*, airflow"):
        harness.chosen(asked)


def test_a_subject_is_chosen_by_how_its_name_begins() -> None:
    assert harness.chosen("spark, sqlite") == ["sqlite listen", "sqlite deliver", "spark"]


def test_a_harm_that_is_done_to_nobody_is_refused() -> None:
    assert harness.chosen_harms("kill, end leases", ["sqlite listen"]) == ("kill", "end leases")
    with pytest.raises(ValueError, match="none of the harms: kill generator, "):
        harness.chosen_harms("fail over", ["sqlite listen"])


def test_messages_are_of_every_fate() -> None:
    assert [number for number in range(40) if is_unwanted(number)] == [11, 31]
    assert id_of(7) == "m7"


@pytest.mark.chaos
@pytest.mark.services
def test_a_short_run_loses_nothing() -> None:
    subjects, harms = "sqlite,rabbitmq listen", "kill,stop,end leases,destination,lose replies"
    command = [
        sys.executable,
        "-m",
        "chaos",
        "--duration",
        "6",
        "--seed",
        "3",
        "--subjects",
        subjects,
        "--harms",
        harms,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was lost" in done.stdout


def test_a_line_that_a_killed_process_has_begun_is_not_read_and_spoils_no_other(tmp_path: Path) -> None:
    book, story = Storybook(tmp_path), tmp_path / "story"
    book.tell(BEGAN, "a", "lake")
    whole = story.read_bytes()
    for torn in range(1, len(whole)):
        story.write_bytes(whole + whole[:torn])
        book.tell(TOOK, "a", "lake")

        told = [event.what for event in book.events()]

        assert told in ([BEGAN, TOOK], [BEGAN, BEGAN, TOOK]), f"after {torn} bytes"
        assert told.count(BEGAN) == 1 or torn >= len(whole) - 1
