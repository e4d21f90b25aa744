"""A search for marks that must not be shown: in files, in tables, and in the arguments of every process."""

from __future__ import annotations

import base64
import secrets
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

#: So often a look is taken at all processes, in seconds.
_EVERY = 0.05


@dataclass(frozen=True)
class Mark:
    """A text that is like no other. Its two halves are plain letters, so that it is known however what stands between
    them is quoted or escaped."""

    name: str
    between: str = '/ü#"\\'
    halves: tuple[str, str] = field(default_factory=lambda: (f"Zk{secrets.token_hex(8)}", f"Qv{secrets.token_hex(8)}"))

    def __str__(self) -> str:
        return self.between.join(self.halves)

    def forms(self) -> Iterator[bytes]:
        """Each half as it is, in hexadecimal digits, and in base64 wherever in the text it begins."""
        for half in map(str.encode, self.halves):
            yield half
            yield half.hex().encode()
            for offset in range(3):
                written = base64.b64encode(b"\0" * offset + half)
                # Without what depends on its neighbours.
                yield written[(offset * 8 + 5) // 6 : len(half + b"\0" * offset) * 8 // 6]


class Scan:
    """Looks for marks, and says where it found which."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        self._forms = {form: mark.name for mark in marks for form in mark.forms()}

    def found_in(self, data: bytes) -> set[str]:
        folded = data.lower()
        return {name for form, name in self._forms.items() if form in data or (form.islower() and form in folded)}

    def files(self, *folders: Path) -> Iterator[tuple[str, str]]:
        """(where, mark) of all files below these."""
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    yield from ((str(path), name) for name in self.found_in(path.read_bytes()))

    def tables(self, url: str) -> Iterator[tuple[str, str]]:
        """(table and column, mark) of everything in this database."""
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            for table in sa.inspect(engine).get_table_names():
                rows = connection.execute(sa.select(sa.text("*")).select_from(sa.table(table))).mappings()
                found = {
                    (f"{table}.{column}", name)
                    for row in rows
                    for column, value in row.items()
                    for name in self.found_in(value if isinstance(value, bytes) else str(value).encode())
                }
                yield from sorted(found)
        engine.dispose()


class Processes:
    """A block in which every process of this machine is looked at, again and again."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._seen: dict[bytes, set[str]] = {}
        self._environments: dict[tuple[str, bytes], dict[str, set[str]]] = {}

    def __enter__(self) -> Processes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def arguments(self) -> list[tuple[str, str]]:
        """(command, mark) of what stood in arguments."""
        return [(command.decode(errors="replace"), name) for command, names in self._seen.items() for name in names]

    def environments(self) -> list[tuple[str, str]]:
        """(command and those it comes from, mark) of what stood in the environment a process was started with."""
        known = self._environments.values()
        return [(descent, name) for found in known for descent, names in found.items() for name in names]

    def commands(self) -> list[str]:
        return [command.decode(errors="replace") for command in self._seen]

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY):
            for entry in Path("/proc").glob("[0-9]*"):
                try:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").strip()
                    if command not in self._seen:
                        self._seen[command] = self._scan.found_in(command)
                    if (entry.name, command) not in self._environments:
                        names = self._scan.found_in((entry / "environ").read_bytes())
                        self._environments[entry.name, command] = {_descent(entry): names} if names else {}
                except OSError:
                    continue  # it ended meanwhile, or is none of ours


def _descent(entry: Path) -> str:
    """The command of a process, and those of the processes it comes from; raises OSError when it has ended."""
    commands = []
    while entry.name != "0":
        commands.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
        # The second word there is a name in brackets, and may hold anything.
        entry = entry.with_name((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return " <- ".join(commands)
