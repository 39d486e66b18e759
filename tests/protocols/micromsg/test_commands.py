"""What commands ask for, and the errors after which the connection lives on."""

import pytest
from hypothesis import given

from polywire.protocols.micromsg import commands
from polywire.protocols.micromsg.commands import Ping, Pong, Subscribe, Unsubscribe
from polywire.protocols.micromsg.errors import ends_connection
from polywire.protocols.micromsg.filters import Clause, Filter
from polywire.protocols.micromsg.frames import Command, Decoder, Error, encode
from tests.protocols.micromsg import strategies


def received(octets: bytes) -> Command:
    (command,) = Decoder(established=True).feed(b"\x01" + bytes([len(octets)]) + octets)
    assert isinstance(command, Command)
    return command


@pytest.mark.rule("MICROMSG-75", "MICROMSG-130", "MICROMSG-144")
def test_a_subscription_has_a_destination_and_may_have_a_filter() -> None:
    plain = received(b"subscribe;destination=topic%2Frooms")
    assert commands.read(plain, pub_sub=True) == Subscribe("topic/rooms", Filter())
    filtered = received(b"subscribe;destination=q,filter=room%3E%3DN10%3Bname%3CTkit%2520")
    expected = Filter((Clause("room", ">=", 10), Clause("name", "<", "kit ")))
    assert commands.read(filtered, pub_sub=True) == Subscribe("q", expected)


@pytest.mark.rule("MICROMSG-130")
def test_an_unsubscription_has_a_destination() -> None:
    command = received(b"unsubscribe;destination=topic%2Frooms")
    assert commands.read(command, pub_sub=True) == Unsubscribe("topic/rooms")


@pytest.mark.rule("MICROMSG-190")
@pytest.mark.parametrize("name", [b"SUBSCRIBE", b"Subscribe", b"subscribe"])
def test_the_case_of_a_command_s_name_does_not_matter(name: bytes) -> None:
    command = received(name + b";destination=Q")
    assert commands.read(command, pub_sub=True) == Subscribe("Q", Filter())
    assert encode(command) == b"\x01\x17subscribe;destination=Q"


@pytest.mark.rule("MICROMSG-190")
def test_the_case_of_an_error_s_name_does_not_matter() -> None:
    assert Decoder(established=True).feed(b"\x04\x09FORBIDDEN") == [Error("forbidden")]


@pytest.mark.rule("MICROMSG-132")
@pytest.mark.parametrize("pub_sub", [True, False])
def test_a_ping_is_answered_by_a_pong(pub_sub: bool) -> None:
    assert commands.read(received(b"ping"), pub_sub=pub_sub) == Ping()
    assert commands.read(received(b"ping;"), pub_sub=pub_sub) == Ping()
    assert encode(commands.ANSWER_TO_PING) == b"\x01\x04pong"
    assert commands.read(received(b"pong"), pub_sub=pub_sub) == Pong()


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
    error = commands.read(command, pub_sub=pub_sub)
    assert error == Error("unknown-command", (("name", command.name),))
    assert not ends_connection("unknown-command")


@pytest.mark.rule("MICROMSG-135", "MICROMSG-174", "MICROMSG-100")
@pytest.mark.parametrize("name", ["subscribe", "unsubscribe"])
@pytest.mark.parametrize("destination", ["topic/$/info/clients", "topic/$", "$", "$/x", "", "topic/"])
def test_nothing_is_at_an_empty_destination_or_under_the_service_level(name: str, destination: str) -> None:
    error = commands.read(Command(name, (("destination", destination),)), pub_sub=True)
    assert error == Error("no-such-destination", (("destination", destination),))
    assert not ends_connection("no-such-destination")


@pytest.mark.rule("MICROMSG-174")
@pytest.mark.parametrize("name", ["subscribe", "unsubscribe"])
def test_a_subscription_to_nothing_is_a_bad_frame(name: str) -> None:
    error = commands.read(Command(name, (("filter", "a=N1"),)), pub_sub=True)
    assert isinstance(error, Error)
    assert error.name == "bad-frame"


@pytest.mark.rule("MICROMSG-173", "MICROMSG-84")
def test_a_bad_filter_is_refused() -> None:
    command = Command("subscribe", (("destination", "q"), ("filter", "a<=Tx")))
    error = commands.read(command, pub_sub=True)
    assert isinstance(error, Error)
    assert error.name == "bad-filter"
    limited = Command("subscribe", (("destination", "q"), ("filter", "a=N1;b=N1")))
    assert isinstance(commands.read(limited, pub_sub=True, max_clauses=1), Error)


@pytest.mark.rule("MICROMSG-130", "MICROMSG-144")
@given(strategies.conditions)
def test_a_request_survives_the_wire(condition: Filter) -> None:
    for request in (Subscribe("topic/a/*", condition), Unsubscribe("q"), Ping(), Pong()):
        (command,) = Decoder(established=True).feed(encode(commands.write(request)))
        assert isinstance(command, Command)
        assert commands.read(command, pub_sub=True) == request


@pytest.mark.rule("MICROMSG-100")
def test_a_refusal_names_what_it_refuses() -> None:
    assert encode(commands.forbidden("topic/a")) == b"\x04\x1fforbidden;destination=topic%2Fa"
    assert commands.no_such_destination("q").value("destination") == "q"
    assert not ends_connection(commands.forbidden("q").name)
