"""Every command and its arguments."""

from __future__ import annotations

from homing.cli.command import Command, argument
from homing.message import ACKNOWLEDGED, DEAD, STATES
from homing.pipeline_store import ROLES

STORE = argument(
    "--store",
    default="env:HOMING_STORE",
    metavar="STORE",
    help="the store: a URL, or env:NAME for the URL in an environment variable (default: env:HOMING_STORE)",
)
DEAD_LETTER_STORE = argument(
    "--dead-letter-store",
    default="env:HOMING_DEAD_LETTER_STORE",
    metavar="STORE",
    help="the dead-letter store: a URL or env:NAME (default: env:HOMING_DEAD_LETTER_STORE)",
)
OUTPUT = argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="output format")
DRY_RUN = argument("--dry-run", action="store_true", help="print what would be done, and change nothing")
CHAIN = argument("--chain", metavar="MODULE:ATTRIBUTE", help="the pipeline's chain")
REASON = argument("--reason", help="the reason; recorded with the operation")
LIMIT = argument("--limit", type=int, default=100, help="maximum number of rows (default: 100)")

_PIPELINE = (STORE, DEAD_LETTER_STORE, OUTPUT)
_SELECTION = (
    argument("ids", nargs="*", metavar="ID", help="only these messages"),
    argument("--batch", help="only failures of this batch"),
    argument("--error-group", metavar="GROUP", help='only this error group, as listed by `failures`: "crm: URLError"'),
    argument("--destination", help="only failures at this destination"),
    argument("--since", metavar="TIME", help="only failures since: 2026-12-01 02:00 Europe/Berlin, or PT5M (ago)"),
    argument("--until", metavar="TIME", help="only failures before"),
    argument("--limit", type=int, help="at most this many, oldest first"),
)

COMMANDS = (
    Command(
        "new",
        "Write a small project to begin with: a chain, its DAG, tests, connections, a README",
        "homing.cli.new:new_project",
        (argument("name", metavar="NAME", help="its name, and the folder that is made: web_shop"), DRY_RUN, OUTPUT),
    ),
    Command(
        "init",
        "Create the tables of a pipeline and add what they lack, so that no other process has to",
        "homing.cli.setup:init_stores",
        (REASON, DRY_RUN, *_PIPELINE),
    ),
    Command(
        "grants",
        "Print the GRANT statements of a role, for PostgreSQL",
        "homing.cli.setup:print_grants",
        (
            argument("--role", required=True, choices=ROLES),
            argument("--to", required=True, metavar="NAME", help="the database role to grant to"),
            STORE,
            DEAD_LETTER_STORE,
        ),
    ),
    Command(
        "stores",
        "Count the messages of stores",
        "homing.cli.inspect:count_stores",
        (argument("stores", nargs="*", metavar="STORE", help="the stores, each a URL or env:NAME"), OUTPUT),
    ),
    Command(
        "send",
        "Store messages",
        "homing.cli.send:send_messages",
        (
            argument("contents", nargs="*", metavar="CONTENT", help="one message each, as JSON unless --text is given"),
            argument("--file", metavar="PATH", help="a file with one message per line; - reads standard input"),
            argument("--text", action="store_true", help="contents are plain text, not JSON"),
            argument("--id", help="the message's id; an id that the store already has is not stored again"),
            argument("--header", action="append", default=[], metavar="NAME=VALUE", help="a header; may be repeated"),
            argument("--at", metavar="TIME", help="deliver at: 2026-12-01 02:00 Europe/Berlin, or PT5M (from now)"),
            argument("--priority", type=int, default=0, help="lower numbers are delivered first (default: 0)"),
            argument("--correlation-id"),
            argument("--session-id"),
            STORE,
            DRY_RUN,
            OUTPUT,
        ),
    ),
    Command(
        "peek",
        "Show the next messages without claiming them",
        "homing.cli.inspect:peek_messages",
        (argument("--limit", type=int, default=1, help="maximum number of messages (default: 1)"), STORE, OUTPUT),
    ),
    Command(
        "list",
        "List messages without their contents",
        "homing.cli.inspect:list_messages",
        (
            argument("--state", choices=STATES, help="only messages in this state"),
            argument("--after", type=int, default=0, metavar="NUMBER", help="continue after this sequence number"),
            LIMIT,
            STORE,
            OUTPUT,
        ),
    ),
    Command(
        "show",
        "Show one message: where it is, and what happened at each destination",
        "homing.cli.inspect:show_message",
        (argument("id", metavar="ID"), *_PIPELINE),
    ),
    Command(
        "failures",
        "List failures by error group",
        "homing.cli.failures:list_failures",
        (*_SELECTION, argument("--messages", action="store_true", help="list the messages, not groups"), *_PIPELINE),
    ),
    Command(
        "replay",
        "Run failed messages through their chain again, in this process, skipping finished deliveries",
        "homing.cli.failures:replay_failures",
        (
            *_SELECTION,
            argument("--all", action="store_true", help="every failed message"),
            argument("--rate", type=float, help="maximum messages per second to each destination"),
            argument("--chain", required=True, metavar="MODULE:ATTRIBUTE", help="the pipeline's chain"),
            REASON,
            DRY_RUN,
            *_PIPELINE,
        ),
    ),
    Command(
        "dead-letter",
        "Move waiting messages to the dead-letter store",
        "homing.cli.failures:dead_letter_failures",
        (
            argument("ids", nargs="+", metavar="ID"),
            argument("--reason", required=True, help="the reason; recorded with the message"),
            DRY_RUN,
            *_PIPELINE,
        ),
    ),
    Command(
        "purge",
        "Remove finished messages",
        "homing.cli.maintenance:purge_store",
        (
            argument("--older-than", metavar="DURATION", help="finished at least this long ago: PT24H, or seconds"),
            argument("--state", choices=(ACKNOWLEDGED, DEAD), default=ACKNOWLEDGED, help="(default: acknowledged)"),
            REASON,
            DRY_RUN,
            *_PIPELINE,
        ),
    ),
    Command(
        "forget",
        "Erase messages, finished or not, from everything that their pipeline keeps",
        "homing.cli.forget:forget_messages",
        (
            argument("ids", nargs="+", metavar="ID", help="message ids, or the full name of a single message"),
            argument("--reason", required=True, help="the reason; it is kept, so do not name a person in it"),
            argument(
                "--work-dir",
                action="append",
                metavar="PLACE",
                help="the pipeline's work_dir (default: all below ~/.local/state/homing/work)",
            ),
            DRY_RUN,
            *_PIPELINE,
        ),
    ),
    Command(
        "operations",
        "List who changed what, when and why",
        "homing.cli.inspect:list_operations",
        (argument("--since", metavar="TIME", help="only operations with news since"), LIMIT, STORE, OUTPUT),
    ),
    Command(
        "audit",
        "Check that no message is missing: accepted = delivered + dropped + dead-lettered + waiting + forgotten",
        "homing.cli.maintenance:audit_pipeline",
        (
            CHAIN,
            argument("--destinations", metavar="A,B", help="the chain's destinations, if the chain cannot be imported"),
            *_PIPELINE,
        ),
    ),
    Command(
        "bench-claim",
        "Measure how fast the store's database claims, in a separate store named `bench`",
        "homing.cli.bench:bench_claim",
        (
            argument("--messages", type=int, default=10_000, help="number of messages (default: 10000)"),
            argument("--batch-size", type=int, default=1_000, help="messages per claim (default: 1000)"),
            STORE,
            DRY_RUN,
            OUTPUT,
        ),
    ),
)
