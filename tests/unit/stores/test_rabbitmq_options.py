"""The URL of a RabbitMQ store, and what happens without pika. No broker is needed."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from homing import open_store
from homing.errors import ConfigurationError, MissingExtraError
from homing.stores.rabbitmq.options import RabbitOptions, parse_url

_DOCS = Path(__file__).resolve().parents[3] / "docs" / "stores-memory-and-rabbitmq.md"


def test_a_url_is_taken_apart() -> None:
    parameters, options = parse_url("amqps://me:geheim@broker:5673/v%2Fh?store=orders&prefetch=50&heartbeat=7")

    assert (parameters.host, parameters.port, parameters.virtual_host, parameters.heartbeat) == (
        "broker", 5673, "v/h", 7,
    )  # fmt: skip
    assert parameters.ssl_options is not None
    assert options == RabbitOptions("orders", prefetch=50)


@pytest.mark.parametrize(
    "query",
    ["store=a%20b", "queue_type=stream", "prefetch=0", "prefetch=70000", "ack_wait=x", "ack_wait=inf", "colour=red",
     "heartbeat=often"],
)  # fmt: skip
def test_a_bad_option_is_refused_and_no_password_repeated(query: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(f"amqp://me:geheim@host/?{query}")

    assert "geheim" not in str(caught.value)


def test_opening_a_store_connects_to_nothing() -> None:
    with open_store("amqp://no-such-host.invalid/?store=orders") as store:
        assert store.name == "orders"


def test_without_pika_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("pika", "homing.stores.rabbitmq."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pika", None)

    with pytest.raises(MissingExtraError, match=r"homing\[rabbitmq\]"):
        open_store("amqp://host/?store=orders")


def test_every_option_is_documented_with_its_default() -> None:
    part = _DOCS.read_text().partition("## RabbitMQ")[2].partition("###")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", part, re.MULTILINE))
    defaults = {field.name: str(field.default) for field in fields(RabbitOptions)}
    defaults["store"] = defaults.pop("name")

    assert documented == defaults
