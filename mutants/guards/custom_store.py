"""The guards of stores that authors write, and of the packages that bring them."""

from __future__ import annotations

from mutants.guard import guard

_CUSTOM, _OPENING = "custom_store.py", "stores/__init__.py"
_TESTS = "tests/unit/stores/test_custom_store.py::"

GUARDS = (
    guard(
        "no package takes a scheme of ours over",
        _OPENING,
        "    if scheme in _OPENERS:\n        module, _, function",
        "    if not entry_points(group=ENTRY_POINTS, name=scheme):\n        module, _, function",
        f"{_TESTS}test_no_package_takes_a_scheme_of_ours_over",
    ),
    guard(
        "a scheme that two packages bring is refused, by their names",
        _OPENING,
        "    if len(found) > 1:\n",
        "    if len(found) > 2:\n",
        f"{_TESTS}test_a_scheme_of_two_packages_is_refused_by_their_names",
    ),
    guard(
        "what a custom store cannot do is refused, and not left out",
        _CUSTOM,
        "            if wanted is not None and ability not in self.features:\n",
        "            if False and ability not in self.features:\n",
        f"{_TESTS}test_a_schedule_and_a_transaction_are_not_passed_over_in_silence",
    ),
    guard(
        "an object is one store, so that it is not its own dead-letter store",
        _CUSTOM,
        "        known = _known.get(id(given))\n",
        "        known = None\n",
        f"{_TESTS}test_it_is_the_same_store_whenever_it_is_asked_for",
    ),
    guard(
        "what is handed out must be a message",
        _CUSTOM,
        "        if message is None or isinstance(message, Message):\n",
        "        if message is None or message:\n",
        f"{_TESTS}test_a_retrieve_that_returns_no_message_is_told_what_is_due",
    ),
    guard(
        "a store whose verbs are coroutines, which nobody awaits, is refused before it is needed",
        _CUSTOM,
        "    if late := [verb for verb in VERBS if _runs_later(getattr(given, verb))]:\n",
        "    if late := [verb for verb in VERBS if False]:\n",
        f"{_TESTS}test_a_store_whose_verbs_do_nothing_yet_when_they_are_called_is_refused[store_later]",
    ),
    guard(
        "what a custom store only promises to store is not taken for stored",
        _CUSTOM,
        '        self._require_done("store", stored)\n',
        "",
        f"{_TESTS}test_what_is_not_stored_yet_is_not_taken_for_stored[returned0]",
    ),
)
