"""An intake that is killed when its messages are committed and the source has not heard of it."""

from __future__ import annotations

import os
import signal
import sys

from homing import open_store
from homing.delivery.intake import take_in
from homing.store import Store


def die(*_arguments: object, **_options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(source_url: str, target_url: str, limit: str) -> None:
    source, target = open_store(source_url), open_store(target_url)
    kind: type[Store] = type(source)
    kind.acknowledge = die  # type: ignore[method-assign]
    while not take_in(source, target, int(limit)):
        pass
    print("never reached")


if __name__ == "__main__":
    main(*sys.argv[1:])
