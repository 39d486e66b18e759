"""Subscriptions: filters, destinations, and the commands that carry them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.micromsg.errors import LocalProtocolError, ends_connection
from polywire.protocols.micromsg.filters import (
    OPERATORS,
    ORDER_OPERATORS,
    PING,
    PONG,
    TEXT_OPERATORS,
    Clause,
    Filter,
    forbidden,
    is_usable,
    matches,
    no_such_destination,
    read_filter,
    read_subscription,
    subscribe,
    topic_path,
    unsubscribe,
    write_filter,
)
from polywire.protocols.micromsg.frames import Command, Decoder, Error, encode
from polywire.protocols.micromsg.text import Value
from tests.protocols.micromsg import strategies

DATE = datetime(2014, 10, 13, 11, 0, tzinfo=UTC)
PROPERTIES: dict[str, Value] = {"n": 5, "big": (1 << 63) - 1, "f": 1.5, "d": DATE, "t": "Hello", "empty": ""}


def holds(text: str) -> bool:
    condition = read_filter(text)
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
@pytest.mark.parametrize("operator", ORDER_OPERATORS)
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
        for operator in TEXT_OPERATORS if letter == "T" else ORDER_OPERATORS:
            assert not holds(f"{key}{operator}{value}")


@pytest.mark.rule("MICROMSG-144")
def test_all_clauses_must_hold() -> None:
    assert holds("n=N5;t<THe;f>=N1.5")
    assert not holds("n=N5;t<Tx;f>=N1.5")
    assert holds("n=N5;")
    assert holds("")


@pytest.mark.rule("MICROMSG-144", "MICROMSG-80")
def test_a_text_may_hold_what_separates_clauses() -> None:
    assert read_filter("a=Tx%3By%25") == Filter((Clause("a", "=", "x;y%"),))


@pytest.mark.rule("MICROMSG-145", "MICROMSG-143")
@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_is_read_whole(operator: str) -> None:
    value: Value = "x" if operator in {"~", "&"} else 3
    text = "Tx" if operator in {"~", "&"} else "N3"
    assert read_filter(f"a_b-1{operator}{text}") == Filter((Clause("a_b-1", operator, value),))


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
    refused = read_filter(text)
    assert isinstance(refused, Error)
    assert refused.name == "bad-filter"
    assert refused.value("reason")
    assert not ends_connection(refused.name)
    encode(refused)


@pytest.mark.rule("MICROMSG-173")
def test_a_filter_has_a_limited_number_of_clauses() -> None:
    assert isinstance(read_filter(";".join(["a=N1"] * 64)), Filter)
    refused = read_filter(";".join(["a=N1"] * 65))
    assert refused == Error("bad-filter", (("reason", "more than 64 clauses"),))
    assert isinstance(read_filter("a=N1;b=N2;", max_clauses=2), Filter)
    assert isinstance(read_filter("a=N1;b=N2", max_clauses=1), Error)


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
        write_filter(Filter((clause,)))
    assert caught.value.rule == "MICROMSG-173"


@pytest.mark.rule("MICROMSG-144", "MICROMSG-145")
@given(strategies.conditions)
def test_a_filter_survives_the_wire(condition: Filter) -> None:
    assert read_filter(write_filter(condition)) == condition


@given(st.text(max_size=40) | st.text("ab=<>!~&;NDT1.%2", max_size=40))
@pytest.mark.rule("MICROMSG-173")
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    assert isinstance(read_filter(text), (Filter, Error))


@pytest.mark.rule("MICROMSG-138", "MICROMSG-48")
@pytest.mark.parametrize(
    ("destination", "path"),
    [
        ("topic/domain-events", "domain-events"),
        ("topic/a/b", "a/b"),
        ("topic//a", "/a"),
        ("topic/a/*", "a/*"),
        ("topic/$SYS", "$SYS"),
        ("commands", None),
        ("topic", None),
        ("topics/a", None),
        ("Topic/a", None),
        ("/topic/a", None),
    ],
)
def test_what_begins_with_topic_is_a_topic_and_the_rest_are_queues(destination: str, path: str | None) -> None:
    assert topic_path(destination) == path
    assert is_usable(destination)


@pytest.mark.rule("MICROMSG-135", "MICROMSG-174")
@pytest.mark.parametrize("destination", ["", "topic/", "$", "$/x", "topic/$", "topic/$/info"])
def test_nothing_can_be_at_an_empty_name_or_under_the_service_level(destination: str) -> None:
    assert not is_usable(destination)


def received(octets: bytes) -> Command:
    (command,) = Decoder(established=True).feed(b"\x01" + bytes([len(octets)]) + octets)
    assert isinstance(command, Command)
    return command


@pytest.mark.rule("MICROMSG-75", "MICROMSG-130", "MICROMSG-144")
def test_a_subscription_has_a_destination_and_may_have_a_filter() -> None:
    plain = received(b"subscribe;destination=topic%2Frooms")
    assert read_subscription(plain, pub_sub=True) == ("topic/rooms", Filter())
    filtered = received(b"subscribe;destination=q,filter=room%3E%3DN10%3Bname%3CTkit%2520")
    expected = Filter((Clause("room", ">=", 10), Clause("name", "<", "kit ")))
    assert read_subscription(filtered, pub_sub=True) == ("q", expected)


@pytest.mark.rule("MICROMSG-130")
def test_an_unsubscription_has_a_destination() -> None:
    command = received(b"unsubscribe;destination=topic%2Frooms")
    assert read_subscription(command, pub_sub=True) == ("topic/rooms", Filter())


@pytest.mark.rule("MICROMSG-190")
@pytest.mark.parametrize("name", [b"SUBSCRIBE", b"Subscribe", b"subscribe"])
def test_the_case_of_a_command_s_name_does_not_matter(name: bytes) -> None:
    command = received(name + b";destination=Q")
    assert read_subscription(command, pub_sub=True) == ("Q", Filter())
    assert encode(command) == b"\x01\x17subscribe;destination=Q"


@pytest.mark.rule("MICROMSG-190")
def test_the_case_of_an_error_s_name_does_not_matter() -> None:
    assert Decoder(established=True).feed(b"\x04\x09FORBIDDEN") == [Error("forbidden")]


@pytest.mark.rule("MICROMSG-132")
def test_a_ping_is_answered_by_a_pong() -> None:
    assert received(b"ping") == received(b"ping;") == PING
    assert encode(PONG) == b"\x01\x04pong"


@pytest.mark.rule("MICROMSG-131", "MICROMSG-08", "MICROMSG-100")
@pytest.mark.parametrize(
    ("octets", "pub_sub"),
    [
        (b"subscribe;destination=q", False),
        (b"unsubscribe;destination=q", False),
        (b"publish;destination=q", True),
    ],
)
def test_a_command_that_is_not_there_is_unknown_and_the_connection_lives_on(octets: bytes, pub_sub: bool) -> None:
    command = received(octets)
    error = read_subscription(command, pub_sub=pub_sub)
    assert error == Error("unknown-command", (("name", command.name),))
    assert not ends_connection("unknown-command")


@pytest.mark.rule("MICROMSG-135", "MICROMSG-174", "MICROMSG-100")
@pytest.mark.parametrize("name", ["subscribe", "unsubscribe"])
@pytest.mark.parametrize("destination", ["topic/$/info/clients", "topic/$", "$", "$/x", "", "topic/"])
def test_nothing_is_at_an_empty_destination_or_under_the_service_level(name: str, destination: str) -> None:
    error = read_subscription(Command(name, (("destination", destination),)), pub_sub=True)
    assert error == Error("no-such-destination", (("destination", destination),))
    assert not ends_connection("no-such-destination")


@pytest.mark.rule("MICROMSG-174")
@pytest.mark.parametrize("name", ["subscribe", "unsubscribe"])
def test_a_subscription_to_nothing_is_a_bad_frame(name: str) -> None:
    error = read_subscription(Command(name, (("filter", "a=N1"),)), pub_sub=True)
    assert isinstance(error, Error)
    assert error.name == "bad-frame"


@pytest.mark.rule("MICROMSG-173", "MICROMSG-84")
def test_a_bad_filter_is_refused() -> None:
    command = Command("subscribe", (("destination", "q"), ("filter", "a<=Tx")))
    error = read_subscription(command, pub_sub=True)
    assert isinstance(error, Error)
    assert error.name == "bad-filter"
    limited = Command("subscribe", (("destination", "q"), ("filter", "a=N1;b=N1")))
    assert isinstance(read_subscription(limited, pub_sub=True, max_clauses=1), Error)


@pytest.mark.rule("MICROMSG-130", "MICROMSG-144")
@given(strategies.conditions)
def test_a_request_survives_the_wire(condition: Filter) -> None:
    for command, request in (
        (subscribe("topic/a/*", condition), ("topic/a/*", condition)),
        (unsubscribe("q"), ("q", Filter())),
    ):
        (arrived,) = Decoder(established=True).feed(encode(command))
        assert isinstance(arrived, Command)
        assert read_subscription(arrived, pub_sub=True) == request


@pytest.mark.rule("MICROMSG-100")
def test_a_refusal_names_what_it_refuses() -> None:
    assert encode(forbidden("topic/a")) == b"\x04\x1fforbidden;destination=topic%2Fa"
    assert no_such_destination("q").value("destination") == "q"
    assert not ends_connection(forbidden("q").name)
