"""Every store against a model of a few lines. The tests are in homing.testing."""

from homing.testing.conformance.model import *
from tests.conformance.subjects import SUBJECTS  # noqa: F401 - what the tests are run against
