"""new: writes a small project to begin with."""

from __future__ import annotations

import re
import shutil
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from homing.cli.command import EXIT_OK
from homing.cli.context import CommandContext
from homing.errors import ConfigurationError
from homing.ids import new_id

# The project of this name is what is kept here; it is written under the name that was asked for.
_TEMPLATE, _KEPT_AS, _HIDDEN = "shop", ".txt", {"gitignore": ".gitignore"}
_TEMPLATES = Path(__file__).with_name("new_project")
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST = 25  # so that the names of its stores are not too long either
#: What a project needs beyond the core, by the name it is imported by.
_PACKAGES = {"pydantic": "pydantic", "pytest": "pytest", "airflow": "homing[airflow,spark]"}


def new_project(arguments: Namespace, context: CommandContext) -> int:
    """Writes the project, whole or not at all, and shows its files."""
    name, folder = _checked(arguments.name), Path(arguments.name).absolute()
    if folder.exists() or folder.is_symlink():
        raise ConfigurationError(
            f"{folder} exists already, and is left as it is: choose another name, or another folder"
        )
    files = dict(_files(name))
    if not arguments.dry_run:
        _write(folder, files)
    context.tell(f"{'would write' if arguments.dry_run else 'wrote'} {len(files)} files; begin with {name}/README.md")
    if missing := [package for module, package in _PACKAGES.items() if find_spec(module) is None]:
        context.tell(f"not installed here: {', '.join(missing)}: pip install -r {name}/requirements.txt")
    context.show([{"file": f"{name}/{path}"} for path in files], arguments)
    return EXIT_OK


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigurationError(
            f"{name!r:.60} cannot name a project, because its DAG, its modules and its stores are named after it: use "
            f"lower-case letters and digits, in words joined by single _, at most {_LONGEST} characters, as in web_shop"
        )
    return name


def _files(name: str) -> Iterator[tuple[str, str]]:
    """The project's files, by their paths in its folder."""
    for template in sorted(path for path in _TEMPLATES.rglob(f"*{_KEPT_AS}") if path.is_file()):
        path = str(template.relative_to(_TEMPLATES)).removesuffix(_KEPT_AS)
        text = template.read_text(encoding="utf-8")
        yield _HIDDEN.get(path, _renamed(path, name)), _renamed(text, name)


def _renamed(text: str, name: str) -> str:
    return text.replace(_TEMPLATE, name).replace(_TEMPLATE.upper(), name.upper())


def _write(folder: Path, files: dict[str, str]) -> None:
    """A reader, or an interruption, sees all of the files or none."""
    draft = folder.with_name(f".{folder.name}-{new_id()}")
    try:
        try:
            for path, text in files.items():
                target = draft / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror or error}") from error
