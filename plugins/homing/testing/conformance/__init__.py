"""For authors of stores: the conformance suite that every store of ours passes, to be run against one of yours.

    # test_my_store.py
    from homing.testing.conformance import *
    from homing.testing.conformance import Subject

    SUBJECTS = [Subject("shelf", lambda request: "shelf://test")]  # or open=Shelf, without a URL

`pytest test_my_store.py` then runs every test against it; what asks for an ability that the store's `features` do not
have is skipped. See docs/stores.md.
"""

from homing.extras import needs

with needs("homing.testing.conformance", "testing", "pytest", "hypothesis"):
    import pytest

    # Before the modules are imported: a failed assertion then shows its values, as in any other test.
    pytest.register_assert_rewrite(
        *(
            f"homing.testing.conformance.{name}"
            for name in ("abilities", "claims", "crashes", "model", "order", "verbs")
        )
    )
    from homing.testing.conformance.abilities import *
    from homing.testing.conformance.claims import *
    from homing.testing.conformance.crashes import *
    from homing.testing.conformance.fixtures import *
    from homing.testing.conformance.model import *
    from homing.testing.conformance.order import *
    from homing.testing.conformance.subject import Subject  # noqa: F401 - for the author
    from homing.testing.conformance.verbs import *
