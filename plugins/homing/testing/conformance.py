"""The whole suite at once: `from homing.testing.conformance import *`, and a list SUBJECTS of your own."""

from homing.extras import needs

with needs("homing.testing.conformance", "testing", "pytest", "hypothesis"):
    from homing.testing.abilities import *
    from homing.testing.claims import *
    from homing.testing.crashes import *
    from homing.testing.fixtures import *
    from homing.testing.model import *
    from homing.testing.order import *
    from homing.testing.subject import Subject  # noqa: F401 - for the author
    from homing.testing.verbs import *
