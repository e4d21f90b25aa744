"""stores, peek, list, show, and the forms an answer can have."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from homing import open_store
from homing.cli.main import main
from homing.stores.sql import SqlStore
from tests.unit.cli.conftest import Shell


def test_stores_counts_every_store_of_the_database(homing: Shell, failed: str) -> None:
    rows = {row["store"]: row for row in homing.json("stores")}

    assert set(rows) == {"orders", "orders_failures", "orders_dead"}
    assert (rows["orders"]["acknowledged"], rows["orders_failures"]["available"]) == (1, 1)


def test_stores_without_a_store_says_how_to_name_one(homing: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOMING_STORE", "HOMING_DEAD_LETTER_STORE"):
        monkeypatch.delenv(name)

    answer = homing("stores")

    assert (answer.code, "set HOMING_STORE" in answer.err) == (2, True)


def test_peek_shows_the_next_message_and_takes_nothing(homing: Shell) -> None:
    assert homing("peek").code == 1
    homing("send", '{"number": 1}', '{"number": 2}')

    (row,) = homing.json("peek")

    assert row["content"] == {"number": 1}
    assert homing.json("peek", "--limit", "5")[0]["id"] == row["id"]


def test_list_keeps_to_a_state_and_goes_on_where_it_ended(homing: Shell) -> None:
    homing("send", "1", "2", "--at", "PT1H")
    homing("send", "3")

    scheduled = homing.json("list", "--state", "scheduled", "--limit", "1")
    rest = homing.json("list", "--after", str(scheduled[0]["number"]))

    assert [row["state"] for row in scheduled] == ["scheduled"]
    assert [row["state"] for row in rest] == ["scheduled", "available"]


def test_show_tells_where_a_message_is_and_what_happened_at_each_destination(homing: Shell, dead: str) -> None:
    story = homing.json("show", dead)

    assert [place["store"] for place in story["found_in"]] == ["orders", "orders_dead"]
    assert {row["flow"]: row["state"] for row in story["deliveries"]} == {"lake": "delivered", "crm": "failed"}
    assert next(row["error"]["message"] for row in story["deliveries"] if row["flow"] == "crm") == "no good"


def test_show_of_an_unknown_message_says_so_and_ends_with_1(homing: Shell) -> None:
    homing("init")

    answer = homing("show", "nobody")

    assert (answer.code, answer.out) == (1, "")
    assert "message nobody is unknown" in answer.err


def test_the_same_answer_as_table_json_and_yaml(homing: Shell) -> None:
    homing("send", '"bytes and ünïcode"')

    table, plain, written = (homing("peek", "-o", form).out for form in ("table", "json", "yaml"))

    assert "ünïcode" in table
    assert yaml.safe_load(written) == yaml.safe_load(plain)


def test_what_has_no_ability_to_be_browsed_is_a_matter_of_set_up(homing: Shell) -> None:
    answer = homing("peek", "--store", "amqp://127.0.0.1:1/?store=orders")

    assert answer.code == 2
    assert "browse" in answer.err


def test_a_store_that_is_away_ends_with_3(homing: Shell) -> None:
    answer = homing("list", "--store", "sqlite:////nowhere/at/all.db")

    assert (answer.code, answer.out) == (3, "")


def test_a_url_is_never_repeated_in_an_error(homing: Shell) -> None:
    answer = homing("list", "--store", "postgrs://user:s3cret@host/db")

    assert answer.code == 2
    assert "did you mean" in answer.err
    assert "s3cret" not in answer.err


def test_the_console_script_is_the_same_program() -> None:
    settings = (Path(__file__).parents[3] / "pyproject.toml").read_text()

    assert f'homing = "{main.__module__}:{main.__name__}"' in settings


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_an_id_that_would_steer_the_terminal_reaches_none(homing: Shell, output: str) -> None:
    evil = "\x1b]0;pwned\x07\x9b31m\u202e"
    homing("send", "1", "--id", evil)

    for command in (("list",), ("peek",), ("show", evil), ("show", f"{evil}!")):
        answer = homing(*command, "-o", output)
        assert "pwned" in answer.out + answer.err
        assert not set("\x1b\x07\x9b\u202e") & set(answer.out + answer.err)


@pytest.mark.parametrize(
    "command",
    [
        ("stores", "STORE"),
        ("peek", "--store", "STORE"),
        ("list", "--store", "STORE"),
        ("show", "m", "--store", "STORE"),
        ("failures", "--store", "STORE"),
        ("operations", "--store", "STORE"),
        ("audit", "--destinations", "crm", "--store", "STORE"),
        ("replay", "--all", "--chain", "CHAIN", "--store", "STORE"),
        ("dead-letter", "m", "--reason", "why", "--store", "STORE"),
        ("forget", "m", "--reason", "why", "--store", "STORE"),
        ("purge", "--store", "STORE"),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("file", ["x.db", "y.db"])
def test_a_store_that_a_typo_names_is_not_found_and_not_made(
    homing: Shell, chain: str, tmp_path: Path, command: tuple[str, ...], file: str
) -> None:
    homing("send", "1", "--id", "m")
    url = f"sqlite:///{tmp_path}/{file}?store=ordres"
    words = {"STORE": url, "CHAIN": chain}

    answer = homing(*(words.get(word, word) for word in command))

    assert (answer.code, answer.out) == (1, "")
    assert "store 'ordres' does not exist" in answer.err
    assert ("which has orders:" in answer.err) == (file == "x.db")
    assert (tmp_path / file).exists() == (file == "x.db")
    with open_store(f"sqlite:///{tmp_path}/x.db?store=orders") as store:
        assert isinstance(store, SqlStore)
        assert "ordres" not in store.access.siblings()


def test_a_store_that_cannot_be_counted_is_not_said_to_be_well(homing: Shell) -> None:
    answer = homing("stores", "amqp://127.0.0.1:1/?store=orders")

    assert answer.code == 1
    assert "store 'orders' cannot be counted" in answer.err


_SECRET = "gehe/im-hunter2"  # noqa: S105


def test_a_password_in_an_argument_is_warned_of(homing: Shell, tmp_path: Path) -> None:
    url = f"postgresql://pipeline:{_SECRET}@127.0.0.1/db"

    for argv in (["peek", "--store", url], ["stores", url], ["audit", "--dead-letter-store", url]):
        answer = homing(*argv)

        assert "everybody on this machine can read it" in answer.err
        assert "env:NAME" in answer.err
        assert _SECRET not in answer.out + answer.err

    for harmless in (
        "env:HOMING_STORE",
        f"sqlite:///{tmp_path}/x.db?store=a:b@c",
        "postgresql://pipeline@127.0.0.1:1/db",
    ):
        assert "everybody" not in homing("peek", "--store", harmless).err


@pytest.mark.parametrize(
    "argv",
    [["URL"], ["list", "URL"], ["list", "--limit", "URL"], ["list", "-o", "URL"], ["show", "one", "URL", "\x1b[2J"]],
)
def test_a_url_in_the_wrong_place_is_refused_and_not_repeated(homing: Shell, argv: list[str]) -> None:
    url = f"postgresql://pipeline:{_SECRET}@127.0.0.1/db"

    answer = homing(*(url if word == "URL" else word for word in argv))

    assert answer.code == 2
    assert _SECRET not in answer.err
    assert "127.0.0.1" not in answer.err
    assert "\x1b" not in answer.err
