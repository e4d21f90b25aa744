"""The XComs of ours: every key, and how what stands there is read.

Any user who may write XComs may have written it. So it is not trusted: it is checked where it enters, and never says
what is opened. Imported by every Airflow process: keep it light.
"""

from __future__ import annotations

import json
from typing import Any

#: A task's sentence about its batch. The scheduler makes it the task's note.
NOTE = "homing_note"
#: Which messages a replay is about. The API server shows these.
IDS = "homing_ids"
#: What `select` returned: the names of the messages to replay. The tasks behind it act on these.
SELECTED = "return_value"
#: What a replay would do, in words: for people, and for no code.
PLAN = "plan"

#: The keys that code of ours reads.
READ = frozenset({NOTE, IDS, SELECTED})


def read_column(text: object) -> Any:
    """What was pushed, from the text of Airflow's column: JSON, or JSON in a string; None for what is neither."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def read_names(selected: object) -> list[str]:
    """The names that `select` returned, as a task gets them; none where it returned nothing.

    What `select` never returns fails the task for good: another try would find the same.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from homing.json_values import is_unicode

    if selected is None:
        return []
    # Every message's name is a text, without half characters: those cannot be stored.
    if not isinstance(selected, list | tuple) or not all(
        isinstance(name, str) and is_unicode(name) for name in selected
    ):
        raise AirflowFailException(
            f"the XCom {SELECTED!r} of `select` is not a list of message names, so `select` did not write it: clear it"
        )
    return list(selected)
