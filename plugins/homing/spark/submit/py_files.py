"""The code of a pipeline as a zip, for drivers and executors on other machines."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from itertools import chain
from modulefinder import ModuleFinder
from pathlib import Path

from homing.delivery.private_folder import make_private_folder
from homing.errors import ConfigurationError

#: Names, in the environment of a client of Spark Connect, what it brings along for the server's Python workers.
PY_FILES = "HOMING_PY_FILES"
# Folders of what is installed where executors run, too, or is to be.
_INSTALLED = {"site-packages", "dist-packages"}
_MODULES = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)
# The earliest that a zip can say: the same files always make the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def build_py_files(folder: Path, *modules: str) -> Path:
    """A zip, for `--py-files`, of this package, the modules (or packages) named and those they import from beside them;
    the same code, the same file.

    What else they depend on is not in it: that is installed where executors run. Nor are files that are no
    modules. Raises ConfigurationError for a module that has no file.
    """
    code = chain(_files_of_top("homing"), *map(_files_of, modules))
    files = dict(sorted(code))
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    make_private_folder(folder)
    target = folder / f"homing-{digest.hexdigest()[:16]}.zip"
    if not target.exists():
        new = target.with_name(f"{target.name}.{os.getpid()}")
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, path in files.items():
                archive.writestr(zipfile.ZipInfo(name, _NO_TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)
        new.replace(target)
    return target


def _files_of(module: str) -> Iterator[tuple[str, Path]]:
    """The files of a module, or of its package, and of what it imports from the folder that is in; with their names in
    the zip."""
    for name in {module.partition(".")[0], *_beside(module)}:
        yield from _files_of_top(name)


def _beside(module: str) -> set[str]:
    """The modules and packages that this one imports, and those import, from the folder it was found in itself."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.origin is None:
        return set()
    folder = Path(spec.origin).parents[0 if spec.submodule_search_locations is None else 1]
    if _INSTALLED & set(folder.parts):
        return set()  # and so are the others
    finder = ModuleFinder([str(folder)])  # reads, and runs nothing
    finder.import_hook(module)
    return {name.partition(".")[0] for name, found in finder.modules.items() if getattr(found, "__file__", None)}


def _files_of_top(top: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ConfigurationError(f"the module {top!r} has no file that could be sent to Spark's executors")
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        yield origin.name, origin
        return
    for path in origin.parent.rglob("*"):
        # Modules only: what else lies beside them may be a secret.
        if path.is_file() and path.name.endswith(_MODULES):
            yield str(Path(top) / path.relative_to(origin.parent)), path
