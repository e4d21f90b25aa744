"""`python -m bench.contestants <name> <url>`: does what it reads from standard input, and answers with seconds.

enqueue 50       50 messages, one by one
bulk 1000        1,000 messages, in bulk
take 1000 100    1,000 messages that wait already are taken and acknowledged, 100 at a time

The answer is the time per message, on a line of its own.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from bench.content import payloads
from bench.contestants.contestant import Contestant

#: Where each contestant is; only the one that is asked for is imported, since each has an environment of its own.
WHERE = {
    "homing": "homing_sql:HomingSql",
    "homing-rabbitmq": "homing_rabbitmq:HomingRabbitMQ",
    "sqlite3-update": "bare_sqlite:Updating",
    "sqlite3-delete": "bare_sqlite:Deleting",
    "psycopg-update": "bare_postgresql:Updating",
    "psycopg-delete": "bare_postgresql:Deleting",
    "psycopg-copy": "bare_postgresql:Copying",
    "pika-quorum": "bare_pika:Quorum",
    "pika-classic": "bare_pika:Classic",
    "pgmq-client-archive": "pgmq_client:Archiving",
    "pgmq-client-delete": "pgmq_client:Deleting",
    "pgmq-sql-archive": "pgmq_sql:Archiving",
    "pgmq-sql-delete": "pgmq_sql:Deleting",
    "pgqueuer": "pgqueuer_queries:PgQueuer",
    "procrastinate": "procrastinate_jobs:Procrastinate",
    "celery": "celery_tasks:Celery",
    "dramatiq": "dramatiq_actors:Dramatiq",
    "litequeue": "litequeue_file:LiteQueue",
}


def perform(contestant: Contestant, verb: str, count: int, size: int) -> float:
    contents = payloads(count)
    if verb == "take":
        contestant.fill(count, contents)
        return contestant.take(count, size) / count
    seconds = contestant.enqueue(contents) if verb == "enqueue" else contestant.bulk(contents)
    contestant.empty()
    return seconds / count


def main() -> None:
    name, url = sys.argv[1:]
    # What a library prints must not be mistaken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, kind = WHERE[name].partition(":")
    contestant = getattr(import_module(f"bench.contestants.{module}"), kind)(url)
    for line in sys.stdin:
        verb, count, *size = line.split()
        print(perform(contestant, verb, int(count), int(size[0]) if size else 1), file=answers, flush=True)
    os._exit(0)  # a peer's threads must not keep the process


if __name__ == "__main__":
    main()
