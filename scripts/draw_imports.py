"""Draws which room of the code imports which, from the code itself, into docs/code.md.

python scripts/draw_imports.py           # write it
python scripts/draw_imports.py --check   # fail where the page is not what the code says
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "code.md"
BEGIN, END = "<!-- drawn by scripts/draw_imports.py -->\n", "<!-- end of the drawing -->\n"

#: `homing` itself only gathers the public names, so it is left out.
PACKAGE = "homing"


def rooms() -> dict[str, set[str]]:
    """Every room, which is a module or a package directly below `homing`, and the rooms it imports."""
    graph = grimp.build_graph(PACKAGE)
    imports: dict[str, set[str]] = {}
    for module in graph.modules - {PACKAGE}:
        room = module.split(".")[1]
        found = imports.setdefault(room, set())
        for imported in graph.find_modules_directly_imported_by(module) - {PACKAGE}:
            found.add(imported.split(".")[1])
        found.discard(room)
    return imports


def reachable(imports: dict[str, set[str]], room: str) -> set[str]:
    """What a room imports, directly or through others."""
    found: set[str] = set()
    waiting = list(imports[room])
    while waiting:
        if (other := waiting.pop()) not in found:
            found.add(other)
            waiting += imports[other]
    return found


def without_detours(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """The imports that no longer way implies: the fewest arrows that say the same."""
    return {
        room: {other for other in others if not any(other in reachable(imports, via) for via in others - {other})}
        for room, others in imports.items()
    }


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    path = ROOT / "plugins" / PACKAGE / room
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    words = " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())
    return words.split(". ")[0].rstrip(".")


def drawing() -> str:
    """The graph as Mermaid draws it, and the rooms in the order of what they build on."""
    imports = rooms()
    lines = ["```mermaid", "flowchart TD"]
    for room, others in sorted(without_detours(imports).items()):
        lines += [f"    {room} --> {other}" for other in sorted(others)]
    lines += ["```", "", "| room | holds | imports |", "| --- | --- | --- |"]
    for room in sorted(imports, key=lambda room: (-len(reachable(imports, room)), room)):
        lines.append(f"| `{room}` | {purpose(room)} | {', '.join(sorted(imports[room])) or '-'} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    before = PAGE.read_text(encoding="utf-8")
    head, _, rest = before.partition(BEGIN)
    after = head + BEGIN + "\n" + drawing() + "\n" + END + rest.partition(END)[2]
    if arguments == ["--check"]:
        if after != before:
            print("docs/code.md does not show the imports of the code: run `python scripts/draw_imports.py`")
        return int(after != before)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
