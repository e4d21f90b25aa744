"""Whatever is given as a store's URL: a store, or an error of ours that gives no secret away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from homing import open_store
from homing.errors import ConfigurationError, HomingError
from homing.stores import check_scheme
from tests.fuzz.profile import TEXTS, examples

_SCHEMES = st.sampled_from(
    [
        "amqp",
        "amqps",
        "memory",
        "mysql",
        "mariadb",
        "postgres",
        "postgresql",
        "postgresql+psycopg",
        "servicebus",
        "sqlite",
        "http",
        "",
    ]
)
_KEYS = st.sampled_from(
    ["store", "ack_wait", "max_ack_wait", "jitter", "max_deliveries", "backoff", "purge_after", "partitions", "columns",
     "rate", "duplicate_window", "prefetch", "queue_type", "heartbeat", "frame_max", "ssl_options", "stroe"]
)  # fmt: skip
_VALUES = st.one_of(
    TEXTS,
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "0", "-1", "nan", "inf", "1e400", "orders"]),
)
_QUERIES = st.lists(st.tuples(_KEYS | TEXTS, _VALUES), max_size=3).map(
    lambda pairs: "&".join(f"{key}={value}" for key, value in pairs)
)
_HOSTS = st.one_of(
    TEXTS, st.sampled_from(["", "/", "h", "h:5", "h:x", "[::1", "u:p@h", "/a.db", "//a.db", "h:99999999"])
)
_URLS = st.one_of(TEXTS, st.tuples(_SCHEMES, _HOSTS, _QUERIES).map(lambda parts: f"{parts[0]}://{parts[1]}?{parts[2]}"))


def refusal(call: Callable[[str], Any], url: str) -> str | None:
    """The text of the error with which this URL is refused, with that of its cause; None when it is not."""
    try:
        opened = call(url)
    except HomingError as error:
        return str(error) and f"{error} {error.__cause__}"
    if opened is not None:
        opened.close()
    return None


@examples(250)
@given(_URLS)
@example("amqp://[::1?store=orders")
@example("amqp://h:x/")
@example("amqp://h/?ssl_options={")
@example("memory://[a]b?ack_wait=1")
@example("sqlite:///a.db?store=a&store=b")
@example("sqlite:///a.db?ack_wait=1&ack_wait=2")
@example("postgresql://h:x/db")
def test_a_url_opens_a_store_or_is_refused_with_a_reason(url: str) -> None:
    assert refusal(open_store, url) != ""


@examples(80)
@given(st.tuples(_SCHEMES, st.sampled_from(["h", "h:x", "[::1", "h/%zz", ""]), _QUERIES))
def test_a_refused_url_does_not_give_its_password_away(parts: tuple[str, str, str]) -> None:
    scheme, rest, query = parts

    assert "s3cr3t" not in (refusal(open_store, f"{scheme}://me:s3cr3t@{rest}?{query}") or "")


@pytest.mark.parametrize("url", [None, 7, b"sqlite:///a.db", ["sqlite:///a.db"], ""])
def test_what_is_not_even_a_text_is_refused(url: object) -> None:
    with pytest.raises(ConfigurationError):
        open_store(url)  # type: ignore[arg-type]


@examples(60)
@given(TEXTS)
def test_a_scheme_is_known_or_refused(url: str) -> None:
    assert "://" in (refusal(check_scheme, url) or "://")
