"""Every command and its arguments."""

from __future__ import annotations

from homing.cli.command import Command, argument
from homing.message import ACKNOWLEDGED, DEAD, STATES

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
    help="the dead-letter store, named likewise (default: env:HOMING_DEAD_LETTER_STORE)",
)
OUTPUT = argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="how to show the answer")
DRY_RUN = argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
CHAIN = argument("--chain", metavar="MODULE:ATTRIBUTE", help="the chain of the pipeline")
REASON = argument("--reason", help="why, for whoever reads the operations later")
LIMIT = argument("--limit", type=int, default=100, help="how many at most (default: 100)")

_PIPELINE = (STORE, DEAD_LETTER_STORE, OUTPUT)
_SELECTION = (
    argument("ids", nargs="*", metavar="ID", help="these messages"),
    argument("--batch", help="what failed in this batch"),
    argument("--error-group", metavar="GROUP", help='what failed so, as `failures` calls it: "crm: URLError"'),
    argument("--destination", help="what failed at this destination"),
    argument("--since", metavar="TIME", help="what failed since then: 2026-12-01 02:00 Europe/Berlin, or PT5M ago"),
    argument("--until", metavar="TIME", help="what failed before then"),
    argument("--limit", type=int, help="the oldest so many"),
)

COMMANDS = (
    Command(
        "init",
        "Make the tables of a pipeline, and what they lack, so that nothing else has to",
        "homing.cli.preparing:init",
        (REASON, DRY_RUN, *_PIPELINE),
    ),
    Command(
        "grants",
        "Print the GRANT statements of a role, for PostgreSQL",
        "homing.cli.preparing:grants",
        (
            argument("--role", required=True, choices=("producer", "consumer", "operator", "auditor")),
            argument("--to", required=True, metavar="NAME", help="the role of the database"),
            STORE,
            DEAD_LETTER_STORE,
        ),
    ),
    Command(
        "stores",
        "Count the messages of stores",
        "homing.cli.looking:stores",
        (argument("stores", nargs="*", metavar="STORE", help="stores, by URL or env:NAME"), OUTPUT),
    ),
    Command(
        "send",
        "Store messages",
        "homing.cli.sending:send",
        (
            argument("contents", nargs="*", metavar="CONTENT", help="one message each; JSON, unless --text is given"),
            argument("--file", metavar="PATH", help="one message per line of this file; - is the standard input"),
            argument("--text", action="store_true", help="contents are plain text, not JSON"),
            argument("--id", help="the message's id; one that the store knows already is not stored again"),
            argument("--header", action="append", default=[], metavar="NAME=VALUE", help="may be given many times"),
            argument("--at", metavar="TIME", help="deliver it then: 2026-12-01 02:00 Europe/Berlin, or PT5M from now"),
            argument("--priority", type=int, default=0, help="lower comes first (default: 0)"),
            argument("--correlation-id"),
            argument("--session-id"),
            STORE,
            DRY_RUN,
            OUTPUT,
        ),
    ),
    Command(
        "peek",
        "Look at the next messages, without taking them",
        "homing.cli.looking:peek",
        (argument("--limit", type=int, default=1, help="how many at most (default: 1)"), STORE, OUTPUT),
    ),
    Command(
        "list",
        "List messages, without their contents",
        "homing.cli.looking:list_messages",
        (
            argument("--state", choices=STATES, help="only those in this state"),
            argument("--after", type=int, default=0, metavar="NUMBER", help="go on behind this sequence number"),
            LIMIT,
            STORE,
            OUTPUT,
        ),
    ),
    Command(
        "show",
        "Tell the story of one message: where it is, and what happened at each destination",
        "homing.cli.looking:show",
        (argument("id", metavar="ID"), *_PIPELINE),
    ),
    Command(
        "failures",
        "What has failed, by error group",
        "homing.cli.failing:failures",
        (*_SELECTION, argument("--messages", action="store_true", help="list the messages instead"), *_PIPELINE),
    ),
    Command(
        "replay",
        "Run what failed through its chain again, in this process, skipping what was delivered",
        "homing.cli.failing:replay",
        (
            *_SELECTION,
            argument("--all", action="store_true", help="everything that has failed"),
            argument("--rate", type=float, help="messages per second at most"),
            argument("--chain", required=True, metavar="MODULE:ATTRIBUTE", help="the chain of the pipeline"),
            REASON,
            DRY_RUN,
            *_PIPELINE,
        ),
    ),
    Command(
        "dead-letter",
        "Put messages that wait into the dead-letter store",
        "homing.cli.failing:dead_letter",
        (
            argument("ids", nargs="+", metavar="ID"),
            argument("--reason", required=True, help="why, for whoever reads it later"),
            DRY_RUN,
            *_PIPELINE,
        ),
    ),
    Command(
        "purge",
        "Remove finished messages",
        "homing.cli.keeping:purge",
        (
            argument("--older-than", metavar="DURATION", help="finished for so long: PT24H, or seconds"),
            argument("--state", choices=(ACKNOWLEDGED, DEAD), default=ACKNOWLEDGED, help="(default: acknowledged)"),
            REASON,
            DRY_RUN,
            *_PIPELINE,
        ),
    ),
    Command(
        "forget",
        "Remove messages, finished or not, with everything their pipeline has of them",
        "homing.cli.forgetting:forget",
        (
            argument("ids", nargs="+", metavar="ID", help="messages, by their ids, or by the names of single ones"),
            argument("--reason", required=True, help="why; it is kept, so it names no person"),
            argument(
                "--work-dir",
                action="append",
                metavar="PLACE",
                help="the pipeline's work_dir (default: those below ~/.local/state/homing/work)",
            ),
            DRY_RUN,
            *_PIPELINE,
        ),
    ),
    Command(
        "operations",
        "Who changed what, when and why",
        "homing.cli.looking:operations",
        (argument("--since", metavar="TIME", help="what was heard of since then"), LIMIT, STORE, OUTPUT),
    ),
    Command(
        "audit",
        "Prove the books: accepted = delivered + dropped + dead-lettered + waiting + forgotten",
        "homing.cli.keeping:audit",
        (
            CHAIN,
            argument("--destinations", metavar="A,B", help="the chain's destinations, where it cannot be imported"),
            *_PIPELINE,
        ),
    ),
    Command(
        "bench-claim",
        "Measure how fast the store's database claims, in a store `bench` of its own",
        "homing.cli.bench:bench_claim",
        (
            argument("--messages", type=int, default=10_000, help="how many (default: 10000)"),
            argument("--batch-size", type=int, default=1_000, help="how many per claim (default: 1000)"),
            STORE,
            DRY_RUN,
            OUTPUT,
        ),
    ),
)
