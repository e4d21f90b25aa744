from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.install.environment import REPOSITORY


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is built from, in which nothing was built yet."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(REPOSITORY / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(REPOSITORY / "plugins", folder / "plugins", ignore=ignored)
    return folder


@pytest.fixture(scope="session")
def built(sources: Path) -> Path:
    """The folder with the source distribution, and with the wheel that was built from that."""
    dist = sources / "dist"
    command = [sys.executable, "-m", "build", "--outdir", str(dist), str(sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dist


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (path,) = built.glob("homing-*.whl")
    return path


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder for large environments, which are removed as soon as they are no longer needed."""
    with tempfile.TemporaryDirectory(prefix="homing-user-") as folder:
        yield Path(folder)
