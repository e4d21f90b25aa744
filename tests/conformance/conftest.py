"""The suite that ships in homing.testing, run against every store of ours."""

from homing.testing.conformance.fixtures import *
