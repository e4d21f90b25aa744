"""Running tests on a copy of the sources, in which a guard is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.guard import Guard

#: Seconds for one test, and for all tests of a guard.
TEST_TIMEOUT = 120
GUARD_TIMEOUT = 300

PASSED, FAILED, BROKEN = "passed", "failed", "broken"

_LEFT_OUT = (".git", ".venv", "var", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "spark-warehouse")
# A test that ends so says nothing about a guard: the mutant does not run, or nobody waited for it.
_NO_ANSWER = ("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "Failed: Timeout")


@dataclass(frozen=True)
class Outcome:
    """How a test ended: passed, failed, or broken, which is anything else, with a word about it."""

    state: str
    said: str = ""


class Tree:
    """A copy of the sources in which tests are run."""

    def __init__(self, root: Path, place: Path) -> None:
        self._place = place
        shutil.copytree(root, place, ignore=shutil.ignore_patterns(*_LEFT_OUT))

    def remove(self, guard: Guard) -> None:
        """Takes the guard out."""
        self._write(guard, guard.removed_from(self._place))

    def restore(self, guard: Guard, root: Path) -> None:
        """Puts the guard back."""
        self._write(guard, (root / guard.file).read_text(encoding="utf-8"))

    def _write(self, guard: Guard, text: str) -> None:
        path = self._place / guard.file
        path.write_text(text, encoding="utf-8")
        # Python takes a file of the same size, changed within a second, for the one it has compiled.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def run(self, tests: Sequence[str], *options: str, timeout: float = GUARD_TIMEOUT) -> dict[str, Outcome]:
        """How each of these tests ends here."""
        report = self._place / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        command += [f"--timeout={TEST_TIMEOUT}", f"--junitxml={report}", *options, *tests]
        environment = {**os.environ, "PYTHONPATH": str(self._place / "plugins")}
        process = subprocess.Popen(
            command,
            cwd=self._place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            output = f"nothing was heard of it for {timeout:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        cases = _cases(report)
        word = " / ".join(output.strip().splitlines()[-3:])
        return {test: _outcome(cases, test, word) for test in tests}


def missing(tests: Sequence[str], root: Path) -> set[str]:
    """Those of these tests that are not there. One such would keep pytest from running the others."""
    files = sorted({test.partition("::")[0] for test in tests if (root / test.partition("::")[0]).is_file()})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", *files]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    collected = {line for line in found.stdout.splitlines() if "::" in line}
    return set(tests) - collected - {name.partition("[")[0] for name in collected}


def _cases(report: Path) -> list[ET.Element]:
    try:
        return list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest has just written it
    except (FileNotFoundError, ET.ParseError):
        return []


def _outcome(cases: Sequence[ET.Element], test: str, word: str) -> Outcome:
    """How a test ended; one with many cases has failed when one of them has, and passed when all have."""
    path, _, name = test.partition("::")
    module = path.removesuffix(".py").replace("/", ".")
    mine = [case for case in cases if case.get("classname") == module and _is_of(str(case.get("name")), name)]
    if not mine:
        return Outcome(BROKEN, f"it did not run: {word}")
    failures = [str(found.get("message")) for case in mine for found in case.iter("failure")]
    others = [str(found.get("message")) for case in mine for kind in ("error", "skipped") for found in case.iter(kind)]
    silent = [said for said in failures if said.startswith(_NO_ANSWER)]
    if len(failures) > len(silent):
        return Outcome(FAILED, next(said for said in failures if said not in silent).splitlines()[0])
    if silent or others:
        return Outcome(BROKEN, (silent or others)[0].splitlines()[0])
    return Outcome(PASSED)


def _is_of(case: str, name: str) -> bool:
    return case == name or case.startswith(f"{name}[")
