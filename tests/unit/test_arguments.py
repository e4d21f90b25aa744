"""An argument that nothing of ours has is refused wherever it is given, with the one that was meant."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from homing import (
    CircuitBreaker,
    HandlerChain,
    ListenerConfig,
    ReplayConfig,
    RetryPolicy,
    StoreListener,
    destination,
    message_filter,
    open_store,
    processor,
    transformer,
)
from homing.cli.main import main
from homing.errors import ConfigurationError

WRONG: list[tuple[Callable[..., Any], str, str]] = [
    (ListenerConfig, "max_retires", "did you mean max_retries=?"),
    (ReplayConfig, "polling_intervall", "did you mean polling_interval=?"),
    (StoreListener, "max_retires", "it has: store, config"),
    (HandlerChain, "destination_flow", "did you mean destinations_flow=?"),
    (RetryPolicy, "max_retires", "did you mean max_retries=?"),
    (CircuitBreaker, "failiures", "did you mean failures=?"),
    (destination, "max_retires", "did you mean max_retries=?"),
    (message_filter, "datafrane", "did you mean dataframe=?"),
    (processor, "nmae", "did you mean name=?"),
    (transformer, "nmae", "did you mean name=?"),
]


@pytest.mark.parametrize(("called", "wrong", "hint"), WRONG, ids=[f"{each[0].__name__}" for each in WRONG])
def test_an_argument_that_does_not_exist_is_named_with_the_one_that_was_meant(
    called: Callable[..., Any], wrong: str, hint: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        called(**{wrong: 3})

    assert f"{called.__name__}" in str(refused.value)
    assert f"has no option {wrong!r}; {hint}" in str(refused.value)


@pytest.mark.parametrize("url", ["memory://x", "sqlite:///x.db?store=x", "amqp://host/?store=x"])
def test_so_is_an_option_of_a_url(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"has no option 'max_deliverys'; did you mean max_deliveries=\?"):
        open_store(f"{url}{'&' if '?' in url else '?'}max_deliverys=3")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["storse"], "there is no command 'storse'; did you mean stores?"),
        (["audit", "--chian", "shop:chain"], "audit has no option '--chian'; did you mean --chain?"),
        (["send", "1", "--stroe=sqlite:///secret"], "send has no option '--stroe'; did you mean --store?"),
        (["xyz"], "there is no command 'xyz'; there are: new, "),
    ],
)
def test_so_is_a_word_of_the_command_line_and_no_value_is_repeated(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)

    shown = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in shown
    assert "secret" not in shown


def test_what_is_checked_keeps_its_name_its_signature_and_its_place() -> None:
    assert list(inspect.signature(ListenerConfig).parameters)[:2] == ["polling_interval", "max_retries"]
    assert "retry_interval" in inspect.signature(destination).parameters
    assert pickle.loads(pickle.dumps(RetryPolicy(max_retries=2))) == RetryPolicy(max_retries=2)  # noqa: S301
