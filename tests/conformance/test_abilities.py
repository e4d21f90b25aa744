"""What only some stores can do. The tests are in homing.testing."""

from homing.store import STORE_KINDS, Store
from homing.testing.conformance.abilities import *
from tests.conformance.subjects import SUBJECTS  # noqa: F401 - what the tests are run against


def test_features_are_those_of_its_kind(store: Store) -> None:
    assert store.features in [kind.features for kind in STORE_KINDS.values()]
