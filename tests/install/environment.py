"""A user's machine: virtual environments and folders of their own, and nothing of this repository on any path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
_OURS = ("AIRFLOW_", "HOMING_", "SPARK_", "PYSPARK_", "PYTHON", "VIRTUAL_ENV", "PYTEST_", "CI")


def plain_environment(home: Path) -> dict[str, str]:
    """The environment of a user who has none of our settings, and keeps what they keep below `home`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    binaries = [part for part in os.environ["PATH"].split(os.pathsep) if not Path(part).is_relative_to(REPOSITORY)]
    pip_cache = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")
    kept = {"XDG_STATE_HOME": str(home / "state"), "XDG_CACHE_HOME": str(home / "cache"), "PIP_CACHE_DIR": pip_cache}
    return {**inherited, **kept, "PATH": os.pathsep.join(binaries), "SPARK_LOCAL_IP": "127.0.0.1"}


def find_python(version: str) -> Path | None:
    """The interpreter of this version, such as "3.12"; None when this machine has none."""
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [shutil.which(f"python{version}"), *map(str, managed.glob(f"{version}.*/bin/python"))]
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        found.insert(0, str(Path(sys.base_prefix, "bin", f"python{version}")))
    for candidate in filter(None, found):
        # Asked, and not just looked up: a version manager has names for what it has not.
        said = subprocess.run(
            [candidate, "-c", "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if said.stdout.strip() == version:
            return Path(candidate)
    return None


def run(command: list[str | Path], *, cwd: Path, env: Mapping[str, str], timeout: float = 900) -> str:
    """What the command prints. Fails with all it said when it ends with an error."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-6000:]}"
    return done.stdout


@dataclass
class Environment:
    """A virtual environment with a Python of this machine, and its user's folder beside it."""

    python: Path
    folder: Path
    env: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.env = plain_environment(self.folder)
        run([self.python, "-m", "venv", self.venv], cwd=self.folder, env=self.env)

    @property
    def venv(self) -> Path:
        return self.folder / "venv"

    def run(self, program: str, *arguments: str | Path, timeout: float = 900) -> str:
        """Runs a program of this environment in its user's folder."""
        return run([self.venv / "bin" / program, *arguments], cwd=self.folder, env=self.env, timeout=timeout)

    def install(self, *packages: str | Path, constraints: Path | None = REPOSITORY / "constraints.txt") -> None:
        """As Airflow's users install: every version by a file of constraints. Airflow publishes one; ours is in its
        place, because it names the versions that the other tests run with."""
        constrained = () if constraints is None else ("--constraint", constraints)
        self.run("python", "-m", "pip", "install", "--quiet", *constrained, *packages)

    def packages(self) -> dict[str, str]:
        """Version by name, of what is installed; pip, and what Python itself installed beside it, are left out."""
        lines = self.run("python", "-m", "pip", "list", "--format=freeze").split()
        found = dict(line.split("==") for line in lines if "==" in line)
        return {name.lower(): version for name, version in found.items() if name not in ("pip", "setuptools")}

    def megabytes(self) -> float:
        """How much the installed packages take on the disk, pip and compiled files left out."""
        return megabytes(self.venv)


def megabytes(venv: Path) -> float:
    ours = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}
    (folder,) = venv.glob("lib/*/site-packages")
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return (
        sum(path.stat().st_size for path in files if path.relative_to(folder).parts[0].partition("-")[0] not in ours)
        / 1e6
    )
