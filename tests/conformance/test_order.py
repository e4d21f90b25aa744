"""Who gets which message next. The tests are in homing.testing."""

from homing.testing.conformance.order import *
from tests.conformance.subjects import SUBJECTS  # noqa: F401 - what the tests are run against
