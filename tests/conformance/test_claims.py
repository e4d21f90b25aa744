"""Many messages at a time. The tests are in homing.testing."""

from homing.testing.conformance.claims import *
from tests.conformance.subjects import SUBJECTS  # noqa: F401 - what the tests are run against
