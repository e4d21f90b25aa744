"""Whatever is written behind `homing`: an answer, or one line that says what is wrong, and no message suffers."""

from __future__ import annotations

import io
import sys
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from homing.cli.command import Argument, Command
from homing.cli.commands import COMMANDS
from homing.cli.main import main
from homing.delivery import PipelineStores, open_pipeline_stores, run_audit
from tests.fuzz.profile import examples
from tests.fuzz.shop import FLOWS, fill, still_there

CHAIN = """
from homing import HandlerChain, destination

@destination
def lake(content): ...

@destination
def crm(content): raise ValueError("no")

chain = HandlerChain("orders", destinations_flow=[lake, crm])
"""

# What a shell can hand over: anything but NUL. Bytes that are no UTF-8 come as lone surrogates.
_WORDS = st.text(st.characters(exclude_characters="\0"), max_size=30)
_NUMBERS = st.sampled_from(["0", "-1", "1", "3", "x", "1e3", "nan", "inf", str(2**31), str(2**63), str(2**64), ""])
_TIMES = st.sampled_from(
    ["now", "PT5M", "P", "PT", "P99999999999Y", "P1000000D", "-PT5M", "2026-12-01 02:00 Europe/Berlin", "10:00",
     "2026-12-01 02:00 No/Where", "0000-00-00", "9999-12-31T23:59:59Z", "99999-01-01", "2026-W53-9", "1/2", "PT1e400S",
     "0001-01-01 00:00 Asia/Tokyo", "9999-12-31 23:59 America/New_York"]
)  # fmt: skip
_CONTENTS = st.sampled_from(["{}", "[", "1e999", "NaN", '"\\ud800"', "[" * 5000, "-" * 9, "9" * 5000, '{"a":1,"a":2}'])
_STORES = st.sampled_from(
    ["env:HOMING_STORE", "env:NO_SUCH", "env:", "memory://x", "sqlite://", "sqlite:////no/such/folder/x.db", "http://x",
     "sqlite:///x.db?store=a b", "amqp://127.0.0.1:1/", "postgresql+psycopg://u:s3cr3t@127.0.0.1:1/d", "x", ""]
)  # fmt: skip
_CHAINS = st.sampled_from(
    ["fuzzed_chain:chain", "fuzzed_chain:none", "fuzzed_chain", ":", "", "os:path", "a..b:c", "."]
)
#: What is worth trying for an argument, beside any words.
_SPECIAL = {
    "--store": _STORES,
    "stores": _STORES,
    # Not another one that is there: who names it wants his dead letters in it.
    "--dead-letter-store": st.sampled_from(["env:HOMING_DEAD_LETTER_STORE", "env:HOMING_STORE", "memory://x", "amqp:"]),
    "--at": _TIMES, "--since": _TIMES, "--until": _TIMES, "--older-than": _TIMES | _NUMBERS,
    "--limit": _NUMBERS, "--after": _NUMBERS, "--priority": _NUMBERS, "--batch-size": _NUMBERS,
    "--rate": st.sampled_from(["nan", "inf", "0", "-1", "1e9", "x", ""]),  # what is small enough takes for ever
    "--messages": st.sampled_from(["0", "-1", "3", "x", ""]),  # a billion would be a billion
    "--chain": _CHAINS,
    "--file": st.sampled_from(["-", ".", "/no/such", "binary", "/dev/null", ""]),
    "--header": st.sampled_from(["a=b", "=", "a", "a=", "homing-encoding=x", "\udcff=\udcff"]),
    "contents": _CONTENTS,
    "-o": st.sampled_from(["table", "json", "yaml", "xml", ""]),
    "--state": st.sampled_from(["dead", "acknowledged", "available", "gone"]),
}  # fmt: skip
_IDS = st.sampled_from(["waits", "failed", "dead", "finished", "' or 1=1 --", "orders/dead", "%", "x" * 300])


@st.composite
def command_lines(draw: st.DrawFn, command: Command) -> list[str]:
    """The command with some of its arguments, required ones mostly."""
    argv = []
    for argument in command.arguments:
        wanted = argument.options.get("required") or argument.options.get("nargs") in (None, "+")
        if draw(st.booleans()) or (wanted and argument.options.get("required", False)):
            argv += draw(_written(argument))
    return [command.name, *argv, *draw(st.sampled_from([[], [], [], ["--no-such"], ["--"], ["--help"]]))]


def _written(argument: Argument) -> st.SearchStrategy[list[str]]:
    flag = argument.flags[0]
    if argument.options.get("action") == "store_true":
        return st.just([flag])
    values = _WORDS if flag not in _SPECIAL else _SPECIAL[flag] if "store" in flag else _SPECIAL[flag] | _WORDS
    if flag in ("ids", "id", "--id", "--batch"):
        values |= _IDS
    if not flag.startswith("-"):
        return st.lists(values, max_size=3)
    return values.map(lambda value: [f"{flag}={value}" if flag.startswith("--") else f"{flag}{value}"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineStores]:
    """A pipeline's stores, named in the environment; and the folder that commands run in."""
    folder = tmp_path_factory.mktemp("shell")
    (folder / "fuzzed_chain.py").write_text(CHAIN)
    (folder / "binary").write_bytes(b"\xff\xfe\0\n")
    urls = [f"sqlite:///{folder}/shop.db?store={name}" for name in ("orders", "orders_dead")]
    with pytest.MonkeyPatch.context() as patch, open_pipeline_stores(urls[0], urls[1]) as stores:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv("HOMING_STORE", urls[0])
        patch.setenv("HOMING_DEAD_LETTER_STORE", urls[1])
        yield stores


@pytest.fixture
def neighbours(shop: PipelineStores) -> set[str]:
    return fill(shop, str(uuid.uuid4()))


def typed(argv: list[str], typed_in: bytes = b"1\n\xff\n") -> tuple[int, str, str]:
    """How the command ended, what it answered, and what it said to people, on streams like those of a terminal."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(typed_in), "utf-8")
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(argv)
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    finally:
        sys.stdin = before
        out.flush()
    return code, out.buffer.getvalue().decode(), err.getvalue()


def check(stores: PipelineStores, ids: set[str], argv: list[str]) -> None:
    code, answered, said = typed(argv)

    assert code in (0, 1, 2, 3)
    assert said.strip() or code == 0 or (code == 1 and answered.strip()), argv
    assert "Traceback" not in said
    assert "s3cr3t" not in said
    assert {store.count()["leased"] for store in (stores.store, stores.failures, stores.dead_letters)} == {0}
    books = run_audit(stores, FLOWS)
    assert books.balanced, f"{argv}\n{books}"
    assert {one.split()[0] for one in ids - still_there(stores, ids)} <= {"finished"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_answers_or_says_what_is_wrong(shop: PipelineStores, command: Command) -> None:
    ids = fill(shop, str(uuid.uuid4()))

    @examples(25)
    @given(command_lines(command))
    def fuzzed(argv: list[str]) -> None:
        check(shop, ids, argv)

    fuzzed()


@examples(30)
@given(st.lists(_WORDS, max_size=4))
@example([])
@example(["send"])
@example(["send", "\udcff", "--text"])
@example(["show", "\udcff"])
@example(["send", "{}", "--at", "9999-12-31 23:59 America/New_York"])
@example(["send", "[" * 100_000])
@example(["failures", "--since", "P99999999999Y"])
@example(["replay", "--all", "--chain", "fuzzed_chain:chain", "--rate", "nan"])
@example(["list", "--limit", str(2**64)])
@example(["list", "--after", str(2**64)])
@example(["send", "1", "--priority", str(2**64)])
@example(["bench-claim", "--messages", "2", "--batch-size", str(2**64)])
def test_a_command_line_of_any_words_is_answered(shop: PipelineStores, neighbours: set[str], argv: list[str]) -> None:
    check(shop, neighbours, argv)


def test_what_is_not_utf_8_is_refused_by_name(shop: PipelineStores, tmp_path: Path) -> None:
    code, _, said = typed(["send", "--file", "-"])

    assert code == 2
    assert "cannot read -" in said
