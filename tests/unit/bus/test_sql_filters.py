"""The language of SQL filters and actions."""

from __future__ import annotations

from typing import Any

import pytest

from homing.bus import CorrelationFilter, Message, Rule, SqlFilter
from homing.bus.rules import copies
from homing.errors import ConfigurationError
from tests.servicebus import rules
from tests.servicebus.letters import Letter

MESSAGE = Message(
    body=None, label="Order", message_id="m1", correlation_id="c", session_id="s",
    application_properties={"colour": "red", "size": 5, "price": 1.5, "paid": True, "odd name": "x", "none": None},
)  # fmt: skip
#: The same message as the test server has it, which filters in its own way.
LETTER = Letter(
    properties={"label": "Order", "message_id": "m1", "correlation_id": "c", "session_id": "s"},
    application=dict(MESSAGE.application_properties),
)


EXPRESSIONS = [
    ("colour = 'red'", True),
    ("COLOUR = 'red'", True),
    ("user.colour = 'red'", True),
    ("colour = 'Red'", False),
    ("colour <> 'blue'", True),
    ("colour != 'red'", False),
    ("size > 4 AND size <= 5", True),
    ("size + 1 = 6 AND size * 2 = 10 AND size / 2 = 2 AND size % 2 = 1", True),
    ("price * 2 = 3.0", True),
    ("-size = -5", True),
    ("size = 1 OR colour = 'red'", True),
    ("NOT (size = 1 OR colour = 'red')", False),
    ("size = 1 OR size = 2 AND colour = 'red'", False),
    ("paid = TRUE", True),
    ("paid", True),
    ("NOT paid", False),
    ("paid = 1", False),
    ("colour LIKE 'r%'", True),
    ("colour LIKE '_e_'", True),
    ("colour NOT LIKE 'b%'", True),
    ("colour LIKE 'r.d'", False),
    (r"colour LIKE 'r\_d' ESCAPE '\'", False),
    ("colour IN ('blue', 'red')", True),
    ("size NOT IN (1, 2)", True),
    ("size IN (1, missing)", False),
    ("missing IS NULL AND none IS NULL", True),
    ("colour IS NOT NULL", True),
    ("EXISTS(colour) AND NOT EXISTS(missing)", True),
    ("missing = 'red'", False),
    ("NOT missing = 'red'", False),
    ("missing = 'red' OR TRUE", True),
    ("missing <> 'red'", False),
    ("size = '5'", False),
    ("size / 0 = 1", False),
    ("[odd name] = 'x'", True),
    ("\"odd name\" = 'x'", True),
    ("property('odd name') = 'x'", True),
    ("sys.Label = 'Order' AND sys.MessageId = 'm1' AND sys.CorrelationId = 'c' AND sys.SessionId = 's'", True),
    ("sys.To IS NULL", True),
    ("colour = 'it''s'", False),
    ("1=1", True),
    ("1=0", False),
    ("colour + 'dish' = 'reddish'", True),
]
#: What SQLite has other ideas about: booleans are numbers to it, and + adds numbers only.
OTHERWISE_IN_SQLITE = {"paid = 1", "colour + 'dish' = 'reddish'"}


@pytest.mark.parametrize(("expression", "matches"), EXPRESSIONS)
def test_a_filter_means_what_it_says(expression: str, matches: bool) -> None:
    assert SqlFilter(expression).matches(MESSAGE) is matches


@pytest.mark.parametrize(
    ("expression", "matches"), [row for row in EXPRESSIONS if row[0] not in OTHERWISE_IN_SQLITE], ids=repr
)
def test_another_reading_of_sql_agrees(expression: str, matches: bool) -> None:
    assert rules.SqlFilter(expression)(LETTER) is matches


@pytest.mark.parametrize(
    ("expression", "place"),
    [
        ("", "text"),
        ("a = ", "character 5"),
        ("a = 'open", "character 4"),
        ("(a = 1", r"expected \)"),
        ("a = 1 b", "unexpected text after the end"),
        ("a LIKE 'x' ESCAPE 'long'", "one character"),
        ("a NOT 5", "LIKE or IN"),
        ("a IS 5", "NULL"),
        ("EXISTS(5)", "name of a property"),
        ("a ~ 1", "character 2"),
        ("(" * 50 + "1" + ")" * 50, "parentheses"),
        ("a = '" + "x" * 2000 + "'", "1024"),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused_with_the_place(expression: str, place: str) -> None:
    with pytest.raises(ConfigurationError, match=place):
        Rule("r", SqlFilter(expression)).check()


def acted(action: str) -> Message:
    (copy,) = copies([Rule("r", action=action)], MESSAGE)
    return copy


def test_an_action_sets_and_removes_on_a_copy() -> None:
    copy = acted(
        "SET colour = 'blue'; SET total = size * price, REMOVE paid; SET sys.ReplyTo = colour; REMOVE sys.Label"
    )

    assert copy.application_properties == {
        "colour": "blue", "size": 5, "price": 1.5, "odd name": "x", "none": None, "total": 7.5, "RuleName": "r",
    }  # fmt: skip
    assert (copy.reply_to, copy.label) == ("blue", None)
    assert MESSAGE.application_properties["colour"] == "red"
    assert MESSAGE.label == "Order"


@pytest.mark.parametrize(
    "action",
    ["SET colour = 'it''s; SET', SET total = size * price; REMOVE paid", "SET sys.ReplyTo = colour; REMOVE sys.Label",
     "SET [odd name] = 'y'; set user.Size = size + 1; REMOVE missing"],
)  # fmt: skip
def test_another_reading_of_actions_agrees(action: str) -> None:
    copy = acted(action)
    (theirs,) = rules.copies([rules.Rule("r", action=action)], LETTER)

    assert theirs.application == copy.application_properties
    assert (theirs.properties.get("label"), theirs.properties.get("reply_to")) == (copy.label, copy.reply_to)


@pytest.mark.parametrize(
    "action", ["colour = 'x'", "SET colour 'x'", "SET sys.SequenceNumber = 5", "REMOVE", "SET a=1 SET b=2"]
)
def test_an_action_that_cannot_be_read_is_refused(action: str) -> None:
    with pytest.raises(ConfigurationError):
        Rule("r", action=action).check()


def test_plain_rules_give_one_copy_together_and_each_rule_with_an_action_one_of_its_own() -> None:
    rules = [
        Rule("one", SqlFilter("size = 5")),
        Rule("two", SqlFilter("colour = 'red'")),
        Rule("three", SqlFilter("size = 5"), "SET n = 3"),
        Rule("four", SqlFilter("size = 5"), "SET n = 4"),
        Rule("five", SqlFilter("size = 6"), "SET n = 5"),
    ]

    found = copies(rules, MESSAGE)

    assert [copy.application_properties.get("n") for copy in found] == [None, 3, 4]
    assert found[0] == MESSAGE


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ({"label": "Order"}, True),
        ({"label": "order"}, False),
        ({"label": "Order", "correlation_id": "other"}, False),
        ({"properties": {"size": 5, "paid": True}}, True),
        ({"properties": {"size": "5"}}, False),
        ({"properties": {"missing": None}}, False),
    ],
)
def test_a_correlation_filter_compares_everything_it_names(wanted: dict[str, Any], matches: bool) -> None:
    assert CorrelationFilter(**wanted).matches(MESSAGE) is matches


def test_a_correlation_filter_that_names_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        CorrelationFilter()


@pytest.mark.parametrize("expression", ["a = " + "-" * 900 + "1", "NOT " * 200 + "a"])
def test_signs_and_negations_inside_each_other_have_an_end(expression: str) -> None:
    with pytest.raises(ConfigurationError, match="inside each other"):
        Rule("r", SqlFilter(expression)).check()


def test_what_only_the_service_understands_can_be_written_down() -> None:
    assert Rule("r", SqlFilter("amount > .5"), "SET id = newid()").action == "SET id = newid()"
