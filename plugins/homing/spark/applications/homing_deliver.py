"""Delivers a processed batch to one destination. See `--help`; the stores come through the environment."""

import sys

from homing.spark.jobs import deliver_main

if __name__ == "__main__":
    sys.exit(deliver_main())
