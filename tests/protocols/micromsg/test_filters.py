"""Filters: operators by type, what does not hold, and what is refused."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.micromsg import filters
from polywire.protocols.micromsg.errors import LocalProtocolError, ends_connection
from polywire.protocols.micromsg.filters import Clause, Filter, matches
from polywire.protocols.micromsg.frames import Error, encode
from polywire.protocols.micromsg.properties import Value
from tests.protocols.micromsg import strategies

DATE = datetime(2014, 10, 13, 11, 0, tzinfo=UTC)
PROPERTIES: dict[str, Value] = {"n": 5, "big": (1 << 63) - 1, "f": 1.5, "d": DATE, "t": "Hello", "empty": ""}


def holds(text: str) -> bool:
    condition = filters.read(text)
    assert isinstance(condition, Filter), condition
    return matches(condition, PROPERTIES)


@pytest.mark.rule(
    "MICROMSG-81",
    "MICROMSG-82",
    "MICROMSG-83",
    "MICROMSG-85",
    "MICROMSG-86",
    "MICROMSG-87",
    "MICROMSG-88",
)
@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("t=THello", True),
        ("t=Thello", False),
        ("t=THell", False),
        ("t!=THello", False),
        ("t!=Thello", True),
        ("t<THel", True),
        ("t<Thel", False),
        ("t<Tllo", False),
        ("t>Tllo", True),
        ("t>TLLO", False),
        ("t>THel", False),
        ("t&Tell", True),
        ("t&TELL", False),
        ("t&T", True),
        ("t~Tell", False),
        ("t~TELL", True),
        ("empty=T", True),
    ],
)
def test_texts_are_matched_case_sensitively(clause: str, expected: bool) -> None:
    assert holds(clause) is expected


@pytest.mark.rule("MICROMSG-146", "MICROMSG-82", "MICROMSG-86", "MICROMSG-145")
@pytest.mark.parametrize("operator", filters.ORDER_OPERATORS)
@pytest.mark.parametrize(
    ("key", "lower", "same", "higher"),
    [
        ("n", "N4", "N5", "N6"),
        ("n", "N4.9", "N5.0", "N5.1"),
        ("f", "N1", "N1.5", "N2"),
        ("d", "D1413197999.9", "D1413198000", "D1413198000.000001"),
    ],
)
def test_numbers_and_dates_are_compared(key: str, lower: str, same: str, higher: str, operator: str) -> None:
    expected = {
        "=": (False, True, False),
        "!=": (True, False, True),
        "<": (False, False, True),
        "<=": (False, True, True),
        ">": (True, False, False),
        ">=": (True, True, False),
    }[operator]
    assert tuple(holds(f"{key}{operator}{value}") for value in (lower, same, higher)) == expected


@pytest.mark.rule("MICROMSG-78", "MICROMSG-146")
def test_large_integers_are_compared_exactly() -> None:
    assert holds("big=N9223372036854775807")
    assert not holds("big=N9223372036854775806")
    assert holds("big>N9223372036854775806")
    assert not holds("big=N9223372036854775808.0")


@pytest.mark.rule("MICROMSG-147")
@pytest.mark.parametrize("key", ["missing", "n", "d", "t"])
def test_a_clause_on_a_missing_or_other_type_does_not_hold(key: str) -> None:
    others = {"T": "Tx", "N": "N1", "D": "D1.0"}
    own = {"n": "N", "d": "D", "t": "T"}.get(key)
    for letter, value in others.items():
        if letter == own:
            continue
        for operator in filters.TEXT_OPERATORS if letter == "T" else filters.ORDER_OPERATORS:
            assert not holds(f"{key}{operator}{value}")


@pytest.mark.rule("MICROMSG-144")
def test_all_clauses_must_hold() -> None:
    assert holds("n=N5;t<THe;f>=N1.5")
    assert not holds("n=N5;t<Tx;f>=N1.5")
    assert holds("n=N5;")
    assert holds("")


@pytest.mark.rule("MICROMSG-144", "MICROMSG-80")
def test_a_text_may_hold_what_separates_clauses() -> None:
    assert filters.read("a=Tx%3By%25") == Filter((Clause("a", "=", "x;y%"),))


@pytest.mark.rule("MICROMSG-145", "MICROMSG-143")
@pytest.mark.parametrize("operator", filters.OPERATORS)
def test_each_operator_is_read_whole(operator: str) -> None:
    value: Value = "x" if operator in {"~", "&"} else 3
    text = "Tx" if operator in {"~", "&"} else "N3"
    assert filters.read(f"a_b-1{operator}{text}") == Filter((Clause("a_b-1", operator, value),))


@pytest.mark.rule("MICROMSG-84", "MICROMSG-173", "MICROMSG-145", "MICROMSG-162")
@pytest.mark.parametrize(
    "text",
    [
        "a<=Tx",
        "a>=Tx",
        "a~N1",
        "a&D1.0",
        "a",
        "=N1",
        "A=N1",
        "a=x",
        "a=",
        "a=N",
        "a=Nx",
        "a=Dx",
        "a==N1",
        "a=<N1",
        "a=T%",
        "a=T%ff",
        "a=N1;;b=N2",
        ";",
        "é=N1",
    ],
)
def test_a_filter_that_makes_no_sense_is_refused_and_the_connection_lives_on(text: str) -> None:
    refused = filters.read(text)
    assert isinstance(refused, Error)
    assert refused.name == "bad-filter"
    assert refused.value("reason")
    assert not ends_connection(refused.name)
    encode(refused)


@pytest.mark.rule("MICROMSG-173")
def test_a_filter_has_a_limited_number_of_clauses() -> None:
    assert isinstance(filters.read(";".join(["a=N1"] * 64)), Filter)
    refused = filters.read(";".join(["a=N1"] * 65))
    assert refused == Error("bad-filter", (("reason", "more than 64 clauses"),))
    assert isinstance(filters.read("a=N1;b=N2;", max_clauses=2), Filter)
    assert isinstance(filters.read("a=N1;b=N2", max_clauses=1), Error)


@pytest.mark.rule("MICROMSG-54")
@given(strategies.conditions, strategies.property_sets)
def test_a_filter_decides_from_properties_alone(condition: Filter, found: dict[str, Value]) -> None:
    assert matches(condition, found) is all(clause.holds(found) for clause in condition.clauses)
    needed = {clause.key for clause in condition.clauses}
    assert matches(condition, {key: found[key] for key in found if key in needed}) is matches(condition, found)


@pytest.mark.rule("MICROMSG-84", "MICROMSG-173")
@pytest.mark.parametrize(
    "clause", [Clause("A", "=", 1), Clause("a", "<=", "x"), Clause("a", "~", 1), Clause("a", "==", 1)]
)
def test_a_filter_that_makes_no_sense_is_not_sent(clause: Clause) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        filters.write(Filter((clause,)))
    assert caught.value.rule == "MICROMSG-173"


@pytest.mark.rule("MICROMSG-144", "MICROMSG-145")
@given(strategies.conditions)
def test_a_filter_survives_the_wire(condition: Filter) -> None:
    assert filters.read(filters.write(condition)) == condition


@given(st.text(max_size=40) | st.text("ab=<>!~&;NDT1.%2", max_size=40))
@pytest.mark.rule("MICROMSG-173")
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    assert isinstance(filters.read(text), (Filter, Error))
