"""Runs failed messages through their chain again. See `--help`; the stores come through the environment."""

import sys

from homing.spark.jobs import replay_main

if __name__ == "__main__":
    sys.exit(replay_main())
