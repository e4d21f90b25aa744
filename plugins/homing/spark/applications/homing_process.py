"""Runs a chain's source flow over a claimed batch. See `--help`; the stores come through the environment."""

import sys

from homing.spark.jobs import process_main

if __name__ == "__main__":
    sys.exit(process_main())
