"""What holds for every test run."""

from __future__ import annotations

import os
import tempfile

# Importing Airflow makes a home where there is none: never the one of whoever runs the tests.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="homing-tests-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
