"""Processes killed, servers restarted, clocks that disagree. The tests are in homing.testing."""

from homing.testing.conformance.crashes import *
from tests.conformance.subjects import SUBJECTS  # noqa: F401 - what the tests are run against
