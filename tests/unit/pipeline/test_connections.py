"""Connections inside handlers: declared, found wherever the chain runs, and kept nowhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from airflow.providers.standard.hooks.filesystem import FSHook
from airflow.sdk import BaseHook

from homing import (
    HandlerChain,
    ListenerConfig,
    Message,
    MessageContext,
    ReplayConfig,
    StoreListener,
    connections,
    destination,
    destination_router,
    message_filter,
    open_store,
    processor,
    processor_router,
    transformer,
)
from homing.errors import ChainError, MissingConnectionError
from homing.ledger import SOURCE_FLOW
from homing.pipeline import ExecutionError
from tests.unit.executors.test_lease_keeper import wait_until

SECRET = "Zk-the-password-of-the-crm"  # noqa: S105
CRM = {"conn_type": "http", "host": "crm", "port": 8080, "login": "me", "password": SECRET, "extra": {"region": "eu"}}


@transformer(connections=["prices"])
def priced(order: dict[str, Any], ctx: MessageContext) -> dict[str, Any]:
    return {**order, "by": ctx.connection("prices").host}


@destination(connections=["crm_api"])
def crm(ctx: MessageContext) -> str:
    api = ctx.connection("crm_api")
    assert (api.conn_type, api.login, api.password, api.schema) == ("http", "me", SECRET, None)
    return f"{api.host}:{api.port} {api.extra['region']} {ctx.get_content().get('by')}"


@pytest.fixture
def crm_api() -> Iterator[None]:
    with connections({"crm_api": CRM}):
        yield


def test_a_handler_gets_the_connections_that_it_declares() -> None:
    chain = HandlerChain("orders", source_flow=priced, destinations_flow=crm)

    with connections({"crm_api": CRM, "prices": "https://list"}):
        assert chain.execute({"number": 1}).destination_results == {"crm": "crm:8080 eu list"}


def test_without_a_mapping_they_come_from_the_environment_as_uri_or_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = HandlerChain("orders", destinations_flow=crm)

    monkeypatch.setenv("AIRFLOW_CONN_CRM_API", f"http://me:{SECRET}@crm:8080?region=eu")
    as_uri = chain.execute({}).destination_results
    monkeypatch.setenv("AIRFLOW_CONN_CRM_API", json.dumps(CRM))
    assert as_uri == chain.execute({}).destination_results == {"crm": "crm:8080 eu None"}


def test_a_hook_of_an_airflow_provider_finds_the_same_connection() -> None:
    @destination(connections=["shared"])
    def share(ctx: MessageContext) -> str:
        assert BaseHook.get_connection("shared").password == ctx.connection("shared").password == SECRET
        return str(FSHook("shared").get_path())

    with connections({"shared": {"conn_type": "fs", "password": SECRET, "extra": {"path": "/data"}}}):
        result = HandlerChain("orders", destinations_flow=share).execute({})
    assert result.destination_results == {"share": "/data"}


@pytest.mark.parametrize("kind", [message_filter, transformer, processor, processor_router, destination_router])
def test_every_kind_of_handler_may_declare_connections(kind: Any, crm_api: None) -> None:
    seen = []

    @kind(connections=["crm_api"])
    def asking(ctx: MessageContext) -> Any:
        seen.append(ctx.connection("crm_api").host)
        return {message_filter: True, transformer: {}}.get(kind)

    flows: dict[str, Any] = {"source_flow": asking, "destinations_flow": crm}
    if kind is destination_router:
        flows = {"destinations_flow": [asking, crm]}
    HandlerChain("orders", **flows).execute({})
    assert seen == ["crm"]


@pytest.mark.parametrize("takes", [list[MessageContext], list[dict[str, Any]]])
def test_a_destination_that_takes_batches_gets_them_by_its_contexts_or_its_client(takes: Any, crm_api: None) -> None:
    def session(connections: Any) -> str:
        return str(connections["crm_api"].host)

    def load(orders: Any, client: str) -> list[str]:
        return [order.connection("crm_api").host if takes is list[MessageContext] else client for order in orders]

    load.__annotations__ = {"orders": takes}
    loading = destination(batch=10, setup=session, connections=["crm_api"])(load)
    assert HandlerChain("orders", destinations_flow=loading).execute({}).destination_results == {"load": "crm"}


def test_a_client_is_made_anew_and_the_old_one_left_when_its_connection_says_something_new() -> None:
    history: list[str] = []

    @contextmanager
    def session(connections: Any) -> Iterator[str]:
        password = connections["crm_api"].password
        history.append(f"+{password}")
        yield password
        history.append(f"-{password}")

    @destination(setup=session, connections=["crm_api"])
    def sending(order: dict[str, Any], client: str) -> str:
        return client

    results = []
    with HandlerChain("orders", destinations_flow=sending) as chain:
        for password in ("one", "one", "two"):
            with connections({"crm_api": {**CRM, "password": password}}):
                results.append(chain.execute({}).destination_results["sending"])
    assert results == ["one", "one", "two"]
    assert history == ["+one", "-one", "+two", "-two"]


def test_a_setup_with_a_parameter_and_no_connections_is_refused_and_so_is_one_with_two() -> None:
    with pytest.raises(ChainError, match=r"setup= of the destination 'a' has the parameter 'api'.*connections="):
        destination(setup=lambda api: api, name="a")(lambda ctx, client: None)
    with pytest.raises(ChainError, match="takes nothing, or its connections"):
        destination(setup=lambda api, more: api, name="a", connections=["x"])(lambda ctx, client: None)


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ("crm_api", r"takes a list of ids.*got 'crm_api'; write connections=\['crm_api'\]"),
        (5, "takes a list of ids of Airflow connections, got a int"),
        (["http://me:s3cret@crm"], "the id of a connection has letters"),
        ([None], "the id of a connection has letters"),
    ],
)
def test_what_names_no_connections_is_refused(ids: Any, why: str) -> None:
    with pytest.raises(ChainError, match=why):
        destination(connections=ids, name="crm")(lambda ctx: None)


@pytest.mark.parametrize("kind", [message_filter, transformer, destination])
def test_a_dataframe_handler_is_refused_connections(kind: Any) -> None:
    with pytest.raises(ChainError, match="with dataframe=True has no connections="):
        kind(dataframe=True, connections=["crm_api"])(lambda orders: orders)


def test_two_ids_that_are_one_in_the_environment_are_refused() -> None:
    one = destination(name="one", connections=["crm"])(lambda ctx: None)
    other = destination(name="other", connections=["CRM"])(lambda ctx: None)

    with pytest.raises(ChainError, match="'crm' and 'CRM', which are one and the same"):
        HandlerChain("orders", destinations_flow=[one, other])


def test_a_connection_that_is_not_declared_is_an_error_that_says_so(crm_api: None) -> None:
    @destination(connections=["crm_ap"])
    def mistaken(ctx: MessageContext) -> None:
        ctx.connection("crm_api")

    @destination
    def silent(ctx: MessageContext) -> None:
        ctx.connection("crm_api")

    with connections({"crm_ap": CRM}), pytest.raises(ExecutionError) as failed:
        HandlerChain("orders", destinations_flow=[mistaken, silent]).execute({})

    said = [str(error.__cause__) for error in failed.value.errors]
    assert (
        "destination 'mistaken' did not declare the connection 'crm_api' (it declared 'crm_ap'); did you mean"
        in said[0]
    )
    assert "destination 'silent' did not declare the connection 'crm_api' (it declared none): add it to" in said[1]


def test_a_context_lends_no_handler_the_connections_of_another(crm_api: None) -> None:
    @processor(connections=["crm_api"])
    def first(ctx: MessageContext) -> None:
        ctx.connection("crm_api")

    result = HandlerChain("orders", source_flow=first, destinations_flow=crm).execute({})
    with pytest.raises(ChainError, match="none is running"):
        result.context.connection("crm_api")

    @processor
    def second(ctx: MessageContext) -> None:
        ctx.connection("crm_api")

    with pytest.raises(ExecutionError, match="processor 'second' did not declare"):
        HandlerChain("orders", source_flow=[first, second], destinations_flow=crm).execute({})


def test_a_handler_that_is_called_as_a_function_finds_its_connections_too(crm_api: None) -> None:
    assert crm(MessageContext(Message("1", {}))) == "crm:8080 eu None"


@pytest.mark.parametrize("kind", [processor_router, destination_router])
def test_a_router_picks_no_handler_whose_connections_it_does_not_declare(kind: Any, crm_api: None) -> None:
    @processor(connections=["crm_api"])
    def asking(ctx: MessageContext) -> None:
        ctx.connection("crm_api")

    picked = asking if kind is processor_router else ([asking], crm)

    def chain(*declared: str) -> HandlerChain:
        router = kind(name="router", connections=declared)(lambda ctx: picked)
        if kind is processor_router:
            return HandlerChain("orders", source_flow=router, destinations_flow=crm)
        return HandlerChain("orders", destinations_flow=router)

    assert chain("crm_api").execute({}).destination_results == {"crm": "crm:8080 eu None"}
    with pytest.raises(ExecutionError, match=r"router 'router' picked the .* asks for the connection 'crm_api'"):
        chain().execute({})


def test_a_chain_says_which_flows_ask_for_which_connections() -> None:
    other = destination(name="other", connections=["lake", "crm_api"])(lambda ctx: None)
    chain = HandlerChain("orders", source_flow=priced, destinations_flow=[crm, other])

    assert chain.connections() == {
        "prices": "transformer 'priced'",
        "crm_api": "destination 'crm' and destination 'other'",
        "lake": "destination 'other'",
    }
    assert chain.connections(SOURCE_FLOW) == {"prices": "transformer 'priced'"}
    assert chain.connections("crm") == {"crm_api": "destination 'crm'"}
    assert chain.connections(SOURCE_FLOW, "crm") == {"prices": "transformer 'priced'", "crm_api": "destination 'crm'"}


# -- missing -------------------------------------------------------------------------------------------------------


def test_a_missing_one_says_who_asks_and_how_to_define_it_and_no_handler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    first = processor(name="first")(lambda ctx: ran.append(1))
    with open_store("memory://connections_1") as failures:
        chain = HandlerChain("orders", source_flow=first, destinations_flow=crm, failure_store=failures)

        for text in (None, "", "nonsense"):
            monkeypatch.delenv("AIRFLOW_CONN_CRM_API", raising=False)
            if text is not None:
                monkeypatch.setenv("AIRFLOW_CONN_CRM_API", text)
            with pytest.raises(
                MissingConnectionError, match=r"'crm_api'.* AIRFLOW_CONN_CRM_API .*No message has failed"
            ):
                chain.execute({})
        monkeypatch.delenv("AIRFLOW_CONN_CRM_API")
        with pytest.raises(MissingConnectionError, match="which the destination 'crm' asks for: create it in Airflow"):
            chain.execute({})
        assert ran == []
        assert failures.count()["available"] == 0


def test_a_listener_does_not_start_without_the_connections_of_its_chain() -> None:
    with open_store("memory://connections_2") as store:
        listener = StoreListener(store)
        listener.attach(HandlerChain("orders", destinations_flow=crm))

        with pytest.raises(MissingConnectionError, match="destination 'crm'"):
            listener.start()
        assert not listener.is_running


def test_what_a_listener_has_in_hand_when_a_connection_is_gone_is_delivered_once_it_is_there() -> None:
    chain = HandlerChain("orders", destinations_flow=crm)
    with open_store("memory://connections_3") as store, open_store("memory://connections_4") as dead:
        listener = StoreListener(
            store,
            ListenerConfig(polling_interval=0.02, max_retries=0, dead_letter_store=dead, retry_interval=0.02),
        )
        listener.attach(chain)
        with connections({"crm_api": CRM}):
            listener.start()
        store.store({})
        wait_until(lambda: listener.metrics().released >= 2)
        assert chain.counts()["executed"] == 0
        with connections({"crm_api": CRM}):
            wait_until(lambda: store.count()["acknowledged"] == 1)
        listener.graceful_stop()
        assert dead.count()["available"] == 0
        assert chain.counts()["delivered"] == 1


def test_what_a_chain_replays_by_itself_stays_while_a_connection_is_missing_and_is_no_dead_letter() -> None:
    trouble = [True]

    @destination(connections=["crm_api"])
    def shaky(ctx: MessageContext) -> None:
        if trouble:
            raise ConnectionError(f"no login as {ctx.connection('crm_api').password}")

    with open_store("memory://connections_5") as failures, open_store("memory://connections_6") as dead:
        replay = ReplayConfig(dead_letter_store=dead, polling_interval=0.02, max_retries=0, retry_interval=0.02)
        with HandlerChain("orders", destinations_flow=shaky) as first:
            with connections({"crm_api": CRM}), pytest.raises(ExecutionError) as failed:
                first.execute({})
            failures.store(failed.value.message.content)
        trouble.clear()
        with HandlerChain("orders", destinations_flow=shaky, failure_store=failures, replay=replay) as chain:
            assert chain.replay_listener is not None
            released = lambda: chain.replay_listener.metrics().released >= 2  # type: ignore[union-attr] # noqa: E731
            wait_until(released)
            assert chain.counts()["executed"] == 0
            with connections({"crm_api": CRM}):
                wait_until(lambda: chain.counts()["delivered"] == 1)
        assert dead.count()["available"] == 0


# -- kept nowhere --------------------------------------------------------------------------------------------------


def test_no_failure_record_holds_the_secrets_of_a_connection_whatever_a_handler_raises(
    crm_api: None, caplog: pytest.LogCaptureFixture
) -> None:
    @destination(connections=["crm_api"])
    def quoting(ctx: MessageContext) -> None:
        api = ctx.connection("crm_api")
        try:
            {}[f"http://{api.login}:{api.password}@{api.host} is away"]
        except KeyError as error:
            raise ConnectionError(f"{api}: no login with {api.password}") from error

    @destination(connections=["crm_api"])
    def keeping(ctx: MessageContext) -> Any:
        ctx.set_property("api", ctx.connection("crm_api"))

    @destination(connections=["crm_api"])
    def returning(ctx: MessageContext) -> Any:
        return ctx.connection("crm_api")

    with open_store("memory://connections_7") as failures:
        chain = HandlerChain("orders", destinations_flow=[quoting, keeping, returning], failure_store=failures)
        with pytest.raises(ExecutionError) as failed:
            chain.execute({})
        entry = failures.retrieve()
    assert entry is not None
    shown = f"{entry.content} {failed.value} {failed.value.message.content} {caplog.text}"
    assert "no login with ***" in shown
    assert "http://me:***@crm" in shown
    assert SECRET not in shown


def test_nothing_is_left_in_the_environment_when_the_block_has_ended() -> None:
    with connections({"crm_api": CRM}):
        assert SECRET in os.environ["AIRFLOW_CONN_CRM_API"]
    assert not any(SECRET in value for value in os.environ.values())
