"""The demo: `python -m demo` tells the whole story once; `up`, `send N` and `down` keep the same stack at hand."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from demo.crm import received
from demo.orders import Expected, expect, make_orders
from demo.pipeline import REPOSITORY, OrdersPipeline
from demo.room import check_room
from demo.stack import AirflowStack, StackError
from homing.delivery import AuditReport
from homing.message import ACKNOWLEDGED
from homing.stores import open_store

ORDERS = 2_000
INVALID = "ValueError"  # what the chain raises for an order that makes no sense
UI_PORT = 8080
HOME = REPOSITORY / "var"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    start = commands.add_parser("up", help="start the stack and leave it running")
    start.add_argument("--port", type=int, default=UI_PORT, help="the port of the Airflow UI")
    send = commands.add_parser("send", help="store orders in the running stack")
    send.add_argument("number", type=int, nargs="?", default=100)
    commands.add_parser("down", help="stop what `up` started")
    arguments = parser.parse_args()
    try:
        if arguments.command == "up":
            return up(arguments.port)
        if arguments.command == "send":
            return send_orders(arguments.number)
        if arguments.command == "down":
            return down()
        return demo(HOME / "demo")
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; everything that was started has been stopped", file=sys.stderr)
        return 130


# -- the story -------------------------------------------------------------------------------------------------


def demo(home: Path) -> int:
    """Everything goes in, most of it comes out, the rest is replayed. 0 when every order is where it must be."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {text}", flush=True)

    _stop_left_over(home)
    shutil.rmtree(home, ignore_errors=True)
    if short := check_room(home):
        say(short)
    pipeline = OrdersPipeline(home)
    say("starting Airflow: API server, scheduler, DAG processor, triggerer")
    with pipeline.airflow:
        orders = make_orders(ORDERS)
        with open_store(pipeline.store_url) as store:
            store.store_many(orders)
        say(f"stored {ORDERS} orders in {store.name!r}; the CRM is down")
        pipeline.unpause()
        first = pipeline.wait_until_settled(900, say)
        _show("The books with the CRM down", first)
        failed = [run_id for run_id, state in pipeline.replays().items() if state == "failed"]
        pipeline.start_crm()
        for run_id in failed:
            pipeline.airflow.clear("orders_replay", run_id, ["replay"])
        say(f"the CRM is up; cleared the failed task `replay` of {len(failed)} runs of orders_replay")
        books = pipeline.wait_until_settled(900, say)
        _show("The books after the replay", books)
        say("stopping Airflow")
    expected, reasons = expect(orders), _reasons(pipeline)
    faults = [*_wrong_in(first, expected, len(expected.crm)), *_wrong_in(books, expected, 0)]
    faults += _undelivered(home, expected)
    if reasons != {INVALID: expected.invalid}:
        faults.append(f"the dead letters should all say {INVALID}, and not {dict(reasons)}")
    return _verdict(faults)


def _show(title: str, books: AuditReport) -> None:
    print(f"\n{title}\n{books}\n", flush=True)


def _reasons(pipeline: OrdersPipeline) -> Counter[str | None]:
    """Why the orders that are dead letters are, and how many for each reason."""
    with pipeline.stores() as stores:
        letters = stores.dead_letters.browse(ORDERS)
    return Counter(letter.dead_letter_reason for letter in letters if letter.state != ACKNOWLEDGED)


def _wrong_in(books: AuditReport, expected: Expected, undelivered: int) -> list[str]:
    """What is wrong in books in which, besides the invalid orders, so many could not be delivered."""
    dead = expected.invalid + undelivered
    if books.balanced and (books.total.dropped, books.total.dead_lettered) == (expected.dropped, dead):
        return []
    return [f"the books should balance, with {expected.dropped} dropped and {dead} dead-lettered orders:\n{books}"]


def _undelivered(home: Path, expected: Expected) -> list[str]:
    """Compares what the destinations themselves have with what they must have."""
    faults = []
    for name, wanted in (("lake", expected.lake), ("crm", expected.crm)):
        got = Counter(received(home / name))
        if missing := wanted - got.keys():
            faults.append(f"{name} misses {len(missing)} orders, such as {min(missing)}")
        if unexpected := got.keys() - wanted:
            faults.append(f"{name} got {len(unexpected)} orders that are none of its business")
        if twice := [number for number, times in got.items() if times > 1]:
            faults.append(f"{name} got {len(twice)} orders more than once")
        print(f"{name} has {len(got)} orders of {len(wanted)}, each once" if not faults else f"{name}: see below")
    return faults


def _verdict(faults: list[str]) -> int:
    for fault in faults:
        print(f"WRONG: {fault}", file=sys.stderr)
    if not faults:
        print("Nothing is lost: every order was delivered, dropped by its rule, or is dead-lettered with its reason.")
    return 1 if faults else 0


# -- the stack, kept running -----------------------------------------------------------------------------------


def up(port: int) -> int:
    """Starts the stack and returns, leaving it running."""
    home = HOME / "up"
    pipeline = OrdersPipeline(home, api_port=port)
    if pipeline.airflow.processes():
        print("it is already running")
    else:
        if short := check_room(home):
            print(short)
        print("starting Airflow, about half a minute", flush=True)
        try:
            pipeline.airflow.migrate()
            pipeline.airflow.start()
            pipeline.airflow.wait_healthy()
            pipeline.start_crm()
            pipeline.unpause()
        except BaseException:
            pipeline.airflow.stop()
            raise
    user, password = pipeline.airflow.credentials()
    print(f"Airflow is at {pipeline.airflow.url}: log in as {user!r} with the password {password!r}")
    print("Store some orders with `.venv/bin/python -m demo send 100`, stop with `make down`.")
    return 0


def send_orders(number: int) -> int:
    """Stores orders in the stack that `up` started."""
    pipeline = OrdersPipeline(HOME / "up")
    with open_store(pipeline.store_url) as store:
        print(f"stored {len(store.store_many(make_orders(number)))} orders; look at the DAG `orders`")
    return 0


def down() -> int:
    """Stops what `up` started; its stores stay."""
    _stop_left_over(HOME / "up")
    print("stopped")
    return 0


def _stop_left_over(home: Path) -> None:
    try:
        AirflowStack.attach(home / "airflow").stop()
    except StackError:
        return  # there never was one


if __name__ == "__main__":
    sys.exit(main())
