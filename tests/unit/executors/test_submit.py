"""Starting jobs, where no Spark is installed."""

from __future__ import annotations

import subprocess
import sys

IMPORTED = """
import importlib, pkgutil, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("airflow", "pandas", "pyarrow", "pyspark"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Missing())
import homing.spark.submit
for found in pkgutil.iter_modules(homing.spark.submit.__path__):
    print(importlib.import_module(f"homing.spark.submit.{found.name}").__name__)
"""


def test_whoever_starts_jobs_needs_no_pyspark() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "homing.spark.submit.job" in done.stdout.splitlines()
