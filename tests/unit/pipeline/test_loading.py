"""Importing a chain by its name."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import homing
from homing.errors import ChainImportError
from homing.pipeline import HandlerChain, destination, load_chain

GOOD = """
from homing.pipeline import HandlerChain, destination

@destination
def crm(ctx):
    return "ok"

chain = HandlerChain("orders", destinations_flow=crm)
something = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module to where it can be imported; forgets it afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    written: list[str] = []

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def run_python(text: str, *arguments: Any) -> str:
    """What a Python program prints; the first argument is a folder it can import from."""
    plugins = Path(homing.__path__[0]).parent
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments[1:]],
        env={"PYTHONPATH": f"{arguments[0]}{os.pathsep}{plugins}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_chain_is_found_by_module_and_attribute(module: Any) -> None:
    chain = load_chain(f"{module('orders_good', GOOD)}:chain")
    assert isinstance(chain, HandlerChain)
    assert chain.execute(1).destination_results == {"crm": "ok"}


def test_chain_is_the_same_every_time(module: Any) -> None:
    reference = f"{module('orders_same', GOOD)}:chain"
    assert load_chain(reference) is load_chain(reference)


def test_chain_knows_that_it_was_built_for_a_job(module: Any) -> None:
    loaded = load_chain(f"{module('orders_job', GOOD)}:chain")

    @destination
    def crm(ctx: Any) -> None: ...

    assert loaded.by_reference
    assert not HandlerChain("orders", destinations_flow=crm).by_reference


@pytest.mark.parametrize("reference", ["orders", "orders:", ":chain", "", "a b:chain", "orders:a.b", "a:b:c", None, 7])
def test_name_that_is_spelt_wrongly_is_refused_with_an_example(reference: Any) -> None:
    with pytest.raises(ChainImportError, match='write "module:attribute"'):
        load_chain(reference)


def test_missing_module_is_named_with_the_places_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "gone")])
    with pytest.raises(ChainImportError) as failure:
        load_chain("orders_nowhere:chain")
    assert "module 'orders_nowhere' of the chain" in str(failure.value)
    assert str(tmp_path) in str(failure.value)
    assert "gone" not in str(failure.value)
    assert isinstance(failure.value.__cause__, ModuleNotFoundError)


def test_places_searched_are_kept_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)] * 20)
    with pytest.raises(ChainImportError, match="and 14 more"):
        load_chain("orders_nowhere:chain")


def test_missing_submodule_is_named() -> None:
    with pytest.raises(ChainImportError, match=r"module 'homing\.orders_nowhere' of the chain"):
        load_chain("homing.orders_nowhere:chain")


def test_missing_attribute_suggests_a_close_one(module: Any) -> None:
    with pytest.raises(ChainImportError, match=r"has no 'chian' .*did you mean 'chain'\?"):
        load_chain(f"{module('orders_typo', GOOD)}:chian")


def test_missing_attribute_without_a_close_one_lists_the_chains(module: Any) -> None:
    with pytest.raises(ChainImportError, match="its chains are: chain"):
        load_chain(f"{module('orders_far', GOOD)}:xyz")


def test_attribute_that_is_no_chain_is_refused(module: Any) -> None:
    with pytest.raises(ChainImportError, match="is a int, not a HandlerChain"):
        load_chain(f"{module('orders_int', GOOD)}:something")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("raise RuntimeError('no licence')", RuntimeError),
        ("import a_package_that_is_missing", ModuleNotFoundError),
        ("import sys; sys.exit(3)", SystemExit),
        ("def broken(:", SyntaxError),
    ],
)
def test_error_inside_the_module_keeps_its_cause(module: Any, text: str, cause: type[BaseException]) -> None:
    with pytest.raises(ChainImportError, match=f"importing 'orders_broken' .* failed: {cause.__name__}") as failure:
        load_chain(f"{module('orders_broken', text)}:chain")
    assert isinstance(failure.value.__cause__, cause)


def test_loaded_chain_is_pickled_by_its_name(module: Any) -> None:
    chain = load_chain(f"{module('orders_pickled', GOOD)}:chain")
    assert pickle.loads(pickle.dumps(chain)) is chain  # noqa: S301


def test_pickled_chain_and_handler_arrive_in_another_process(module: Any, tmp_path: Path) -> None:
    chain = load_chain(f"{module('orders_shipped', GOOD)}:chain")
    shipped = tmp_path / "shipped"
    shipped.write_bytes(pickle.dumps([chain, chain.flows[0].destination]))  # type: ignore[union-attr]
    there = (
        "import pickle, sys\n"
        "chain, crm = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(chain.execute(1).destination_results, crm is chain.flows[0].destination, chain.by_reference)"
    )
    assert run_python(there, tmp_path, str(shipped)) == "{'crm': 'ok'} True True"


FORKING = """
import os, sys
from homing.pipeline import load_chain
chain = load_chain("orders_forked:chain")
chain.execute(1)
child = os.fork()
if child == 0:
    print(chain.execute(2).destination_results, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""

FORKED = """
import threading
from homing.pipeline import HandlerChain, destination

@destination
async def left(ctx):
    return threading.active_count() > 1

@destination
async def right(ctx):
    return ctx.get_content()

chain = HandlerChain("orders", destinations_flow=[left, right])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_chain_that_ran_before_a_fork_runs_after_it_too(module: Any, tmp_path: Path) -> None:
    module("orders_forked", FORKED)
    assert run_python(FORKING, tmp_path) == "{'left': True, 'right': 2}"


def test_chain_that_has_no_name_to_be_found_by_is_not_pickled() -> None:
    @destination
    def crm(ctx: Any) -> None: ...

    with pytest.raises(pickle.PicklingError, match="load_chain"):
        pickle.dumps(HandlerChain("orders", destinations_flow=crm))
