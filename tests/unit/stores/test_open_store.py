"""A store URL is opened, or refused with a text that says what to do and repeats no password."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from homing import open_store
from homing.bus.connection import open_broker
from homing.errors import ConfigurationError, StoreError, UnknownStoreError, UnsupportedError
from homing.stores.servicebus.options import servicebus_url


def test_opening_a_store_touches_nothing_until_it_is_used(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/inbox.db?store=orders") as store:
        assert store.name == "orders"

    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_scheme_gets_a_suggestion() -> None:
    with pytest.raises(UnknownStoreError, match="did you mean sqlite://"):
        open_store("sqllite:///inbox.db")


def test_an_unknown_scheme_lists_the_known_ones_and_repeats_no_password() -> None:
    with pytest.raises(UnknownStoreError, match=r"known: .*sqlite://") as caught:
        open_store("gopher://user:geheim@host/x")

    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "amqp", "amqps", "servicebus", "foo", "memory"])
@pytest.mark.parametrize(
    "password",
    ["geheim/x", "geheim#x", "geheim?x", "/geheim", "#geheim", "a?geheim", "a?store=geheim", "a?geheim=1", "[geheim"],
)
def test_a_password_that_is_not_escaped_is_in_no_error_nor_in_its_causes(scheme: str, password: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(f"{scheme}://user:{password}@host:5432/db?store=orders")

    error: BaseException | None = caught.value
    while error is not None:
        assert "geheim" not in str(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgres", "mysql", "mariadb"])
@pytest.mark.parametrize("password", ["a@geheim", "a@:geheim", "@geheim", "a@b@geheim"])
def test_a_password_with_an_at_sign_is_not_taken_for_the_host(scheme: str, password: str) -> None:
    """SQLAlchemy ends a password at the first @: the rest would be named as a host that is not found."""
    with pytest.raises(ConfigurationError, match="%40") as caught:
        open_store(f"{scheme}://user:{password}@host:5432/db?store=orders")

    assert "geheim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("password", ["geheim"])
def test_a_password_where_a_port_should_be_is_not_shown_by_a_traceback(password: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(f"postgresql://user:{password}/db?store=orders")

    assert password not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("scheme", ["amqp", "amqps", "servicebus", "servicebus+emulator", "memory", "postgresql"])
@pytest.mark.parametrize("rest", ["user:geheim/vhost?store=orders", "user:geheim", "user:geheim?store=orders"])
def test_a_password_without_a_host_is_in_no_traceback(scheme: str, rest: str) -> None:
    """Where the host was forgotten, the password stands where the port should be."""
    for call in (open_store, open_broker):
        with pytest.raises(ConfigurationError) as caught:
            call(f"{scheme}://{rest}")

        assert "geheim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "servicebus", "servicebus+emulator"])
@pytest.mark.parametrize("password", ["geheim/", "geheim#x", "[geheim", "a[geheim]b", "a?geheim=1"])
def test_a_password_that_is_not_escaped_is_in_no_error_of_the_bus(scheme: str, password: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_broker(f"{scheme}://user:{password}@host/db")

    assert "geheim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("key", ["geheim"])
def test_a_connection_string_whose_endpoint_is_broken_is_refused_without_its_key(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(servicebus_url(f"Endpoint=sb://[{key}/;SharedAccessKeyName=n;SharedAccessKey={key}", "orders"))

    assert "geheim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["user:geheim@host://x", "postgresql:/user:geheim@host/db", "geheim"])
def test_what_is_no_url_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)

    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("place", ["geheim@", "geheim:@", ":geheim@", "geheim:geheim@", "geheim@:1"])
def test_what_stands_in_a_files_url_where_a_server_would_is_refused_and_not_repeated(place: str) -> None:
    with (
        pytest.raises(ConfigurationError, match="a SQLite store is a file") as caught,
        open_store(f"sqlite://{place}/inbox.db?store=orders") as store,
    ):
        store.count()

    assert "geheim" not in "".join(traceback.format_exception(caught.value))


def test_a_path_without_a_scheme_is_refused() -> None:
    with pytest.raises(UnknownStoreError, match="starts with its scheme"):
        open_store("inbox.db")


@pytest.mark.parametrize("query", ["store=Orders", "store=a__b", "ack_wait=0", "ack_wait=x", "max_deliveries=-1"])
def test_a_bad_option_is_refused(query: str) -> None:
    with pytest.raises(ConfigurationError):
        open_store(f"sqlite:///inbox.db?{query}")


@pytest.mark.parametrize("url", ["sqlite:///x.db?{}", "memory://x?{}", "amqp://h/?{}", "servicebus://n:k@h/?{}"])
def test_every_store_says_of_an_option_what_is_wrong_and_what_is_allowed(url: str) -> None:
    for query, said in (
        ("ack_wait=-1", "the store option ack_wait must be a number >.*, got '-1'"),
        ("ack_wait=inf", "the store option ack_wait must be a number >.*, got 'inf'"),
        ("ack_wiat=1", r"has no option 'ack_wiat'; did you mean ack_wait=\?"),
        ("colour=red", "has no option 'colour'; it has: .*ack_wait"),
        ("ack_wait=1&ack_wait=2", "more than once"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            open_store(url.format(query))


def test_a_store_can_be_named_by_an_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_STORE", f"sqlite:///{tmp_path}/inbox.db?store=mine")

    with open_store("env:MY_STORE") as store:
        assert store.name == "mine"


def test_an_environment_variable_that_is_not_set_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigurationError, match="NO_SUCH_STORE"):
        open_store("env:NO_SUCH_STORE")


@pytest.mark.parametrize(
    "url",
    [
        "mysql://host/db?local_infile=1",
        "mariadb://host/db?local_infile=1",
        "postgres://host/db?options=x",
        "mysql://host/db?read_default_file=/etc/passwd",
        "mysql://host/db?client_flag=128",
        "mysql://host/db?init_command=drop",
        "postgresql://host/db?options=-csearch_path=x",
        "postgresql://host/db?service=other",
        "postgresql://host/db?passfile=/etc/passwd",
        "sqlite:////tmp/x.db?mode=memory",
    ],
)
def test_an_option_of_the_driver_that_a_url_is_not_to_set_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="option"):
        open_store(url)


@pytest.mark.parametrize("url", ["postgresql://h/db?sslmode=require&sslmode=disable", "mysql://h/db?ssl_ca=a&ssl_ca=b"])
def test_an_option_of_the_driver_that_is_there_twice_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="more than once"):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/db?sslmode=verify-full&connect_timeout=5",
        "mysql://h/db?ssl_verify_cert=false&ssl_disabled=false",
    ],
)
def test_options_that_say_how_to_reach_a_server_are_allowed(url: str) -> None:
    open_store(url).close()


def test_a_file_that_is_not_there_is_not_made_by_reading_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/inbox.db?store=orders"
    with open_store(url, read_only=True) as store, pytest.raises(StoreError):
        store.count()

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_store_makes_is_for_its_owner_alone(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/inbox.db?store=orders") as store:
        store.store(1)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}

    assert set(modes) == {"inbox.db", "inbox.db-wal", "inbox.db-shm"}
    assert set(modes.values()) == {0o600}


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "inbox.db").touch(mode=0o644)
    with open_store(f"sqlite:///{tmp_path}/inbox.db?store=orders") as store:
        store.store(1)

    assert (tmp_path / "inbox.db").stat().st_mode & 0o777 == 0o644


def test_a_broker_cannot_be_opened_read_only() -> None:
    with pytest.raises(UnsupportedError, match="SQL stores can"):
        open_store("memory://x", read_only=True)


def test_a_file_that_a_link_leads_to_is_for_its_owner_alone_too(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "inbox.db").symlink_to(tmp_path / "volume" / "inbox.db")

    with open_store(f"sqlite:///{tmp_path}/inbox.db?store=orders") as store:
        store.store(1)

    assert (tmp_path / "volume" / "inbox.db").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def for_everybody() -> Iterator[Path]:
    """A folder like /tmp: everybody may put files there, and only owners replace what is theirs."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("name", ["inbox.db", "inbox.db-wal", "inbox.db-journal", "a link"])
def test_a_file_that_another_user_put_where_everybody_can_is_not_taken_for_the_stores(
    for_everybody: Path, tmp_path: Path, name: str
) -> None:
    """He could read what is stored. What lies beside a database SQLite would take into it."""
    nobody = 65534
    planted = for_everybody / ("inbox.db" if name == "a link" else name)
    if name == "a link":
        planted.symlink_to(tmp_path / "his.db")
    else:
        planted.touch(mode=0o666)
    os.chown(planted, nobody, nobody, follow_symlinks=False)

    with (
        open_store(f"sqlite:///{for_everybody}/inbox.db?store=orders") as store,
        pytest.raises(ConfigurationError, match=f"{planted} belongs to user {nobody}"),
    ):
        store.store("a secret")

    assert planted.is_symlink() or planted.read_bytes() == b""
    assert not (tmp_path / "his.db").exists() or (tmp_path / "his.db").read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_file_of_another_user_in_a_folder_of_his_own_can_be_shared(tmp_path: Path) -> None:
    (tmp_path / "inbox.db").touch(mode=0o666)
    os.chown(tmp_path / "inbox.db", 65534, 65534)

    with open_store(f"sqlite:///{tmp_path}/inbox.db?store=orders") as store:
        assert store.store("shared")
