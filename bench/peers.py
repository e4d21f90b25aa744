"""The peers' environment, bench/.venv-peers: made once, and again when peers.txt or the Python has changed."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE / ".venv-peers"
PYTHON = HOME / "bin" / "python"
_WANTED = HERE / "peers.txt"
_STAMP = HOME / "installed"


def install_peers() -> None:
    """Raises RuntimeError with pip's own words when a package cannot be had."""
    wanted = f"{sys.version}\n{_WANTED.read_text()}"
    if _STAMP.exists() and _STAMP.read_text() == wanted:
        return
    print("installing the peers, once", flush=True)
    venv.create(HOME, with_pip=True, clear=True)
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--requirement", str(_WANTED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        raise RuntimeError("pip could not install the peers: " + " ".join(errors[-3:]))
    _STAMP.write_text(wanted)
