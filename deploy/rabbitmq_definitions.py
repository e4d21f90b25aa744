# ruff: noqa: INP001 - a script, mounted into a container by itself
"""Writes RabbitMQ's definitions: one user without a tag, who may use the queues of the stores it is for, and no others.

RABBITMQ_USER, RABBITMQ_PASSWORD and RABBITMQ_STORES (names, separated by commas) come from the environment; the one
argument is the file, which the broker reads as `load_definitions`. The password is in it as a salted hash only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import sys
from pathlib import Path


def hashed(password: str) -> str:
    """As `rabbit_password_hashing_sha256` has it."""
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def definitions(user: str, password: str, stores: list[str]) -> dict[str, object]:
    """A store's queue, the one of its dead, those in which its messages wait, the exchange that says that they can be
    trusted; to publish, the default exchange."""
    names = "|".join(re.escape(store) for store in stores)
    own = rf"({names})(\.dead)?(\.settled|\.delay\.[0-9]+)?"
    return {
        "users": [{"name": user, "password_hash": hashed(password), "tags": []}],
        "vhosts": [{"name": "/"}],
        "permissions": [
            {
                "user": user,
                "vhost": "/",
                "configure": f"^{own}$",
                "write": rf"^(amq\.default|{own})$",
                "read": f"^{own}$",
            }
        ],
    }


def main() -> None:
    path, given = Path(sys.argv[1]), os.environ
    made = definitions(given["RABBITMQ_USER"], given["RABBITMQ_PASSWORD"], given["RABBITMQ_STORES"].split(","))
    path.unlink(missing_ok=True)
    # Read by the broker, which is another user.
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644), "w") as file:
        json.dump(made, file)


if __name__ == "__main__":
    main()
