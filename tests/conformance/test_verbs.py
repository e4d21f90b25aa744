"""The three verbs, as every store has them. The tests are in homing.testing."""

from homing.testing.conformance.verbs import *
from tests.conformance.subjects import SUBJECTS  # noqa: F401 - what the tests are run against
