import pytest

from polywire.client.address import Address, parse
from polywire.client.errors import AddressError
from polywire.registry import built_in

NOTHING: dict[str, str] = {}


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("fmqp://host", "fmqp://host:7103"),
        ("FMQP://host:1", "fmqp://host:1"),
        ("fmqps://host", "fmqps://host:7103"),
        ("umq://host", "umq://host:7101/umq"),
        ("umqs://host/", "umqs://host:7101/umq"),
        ("umq://host:80/other", "umq://host:80/other"),
        ("micromsg://127.0.0.1", "micromsg://127.0.0.1:7102"),
        ("micromsgs://[::1]:9", "micromsgs://[::1]:9"),
        ("mqtt://host", "mqtt://host:1883"),
        ("mqtts://host", "mqtts://host:8883"),
        ("mqtt+ws://host", "mqtt+ws://host:7101/mqtt"),
        ("mqtt+wss://host", "mqtt+wss://host:7101/mqtt"),
        ("sabc://host", "sabc://host:7105"),
        ("sabcs://host", "sabcs://host:7105"),
        ("sabc+ws://host", "sabc+ws://host:7101/sabc"),
        ("fmqp+unix:/run/x.sock", "fmqp+unix:/run/x.sock"),
        ("fmqp+unix:///run/x.sock", "fmqp+unix:/run/x.sock"),
        ("fmqp+unix:x.sock", "fmqp+unix:x.sock"),
    ],
)
def test_a_url_is_completed_by_its_defaults(url: str, wanted: str) -> None:
    assert str(parse(url, environment=NOTHING)) == wanted


@pytest.mark.parametrize("scheme", [scheme for each in built_in() for scheme in each.schemes])
def test_every_scheme_is_read_back_as_it_is_written(scheme: str) -> None:
    address = parse(f"{scheme}:/run/x" if scheme.endswith("unix") else f"{scheme}://host", environment=NOTHING)
    assert parse(str(address), environment=NOTHING) == address


@pytest.mark.parametrize(
    ("url", "protocol", "wanted"),
    [
        ("tcp://127.0.0.1:5", "fmqp", "fmqp://127.0.0.1:5"),
        ("tls://127.0.0.1:5", "mqtt", "mqtts://127.0.0.1:5"),
        ("ws://127.0.0.1:5/umq", "umq", "umq://127.0.0.1:5/umq"),
        ("unix:/run/x", "sabc", "sabc+unix:/run/x"),
        ("fmqp://h", "fmqp", "fmqp://h:7103"),
    ],
)
def test_what_the_hub_prints_is_an_address_once_the_protocol_is_told(url: str, protocol: str, wanted: str) -> None:
    assert str(parse(url, protocol=protocol, environment=NOTHING)) == wanted


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("", "scheme"),
        ("host:7103", "scheme"),
        ("http://host", "scheme"),
        ("unix:/run/x", "scheme"),
        ("fmqp:host", "host"),
        ("fmqp://", "host"),
        ("fmqp://:7103", "host"),
        ("fmqp://[::1", "host"),
        ("fmqp://host:0", "port"),
        ("fmqp://host:65536", "port"),
        ("fmqp://host:x", "port"),
        ("fmqp://host/path", "path"),
        ("fmqp+unix:", "path"),
        ("fmqp+unix:/" + "x" * 200, "path"),
        ("umq://host?tokn=x", "query"),
        ("umq://host#x", "fragment"),
        ("umq://u:p@host?token=x", "token"),
        ("umq://:p@host", "user"),
    ],
)
def test_an_error_names_the_part_that_is_wrong(url: str, part: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse(url, environment=NOTHING)
    assert caught.value.part == part


def test_an_unknown_scheme_is_answered_with_those_there_are() -> None:
    with pytest.raises(AddressError, match=r"umq, umqs, .*fmqp\+unix"):
        parse("amqp://host", environment=NOTHING)


@pytest.mark.parametrize(("protocol", "part"), [("smtp", "protocol"), ("mqtt", "protocol")])
def test_the_protocol_argument_must_fit(protocol: str, part: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse("fmqp://host", protocol=protocol, environment=NOTHING)
    assert caught.value.part == part


def test_a_protocol_that_is_not_spoken_over_a_transport_is_refused() -> None:
    with pytest.raises(AddressError, match="fmqp is not spoken over ws; there is fmqp, fmqps"):
        parse("ws://host", protocol="fmqp", environment=NOTHING)


def test_who_to_be_comes_from_arguments_then_the_url_then_the_environment() -> None:
    environment = {"POLYWIRE_USER": "eve", "POLYWIRE_PASSWORD": "e", "POLYWIRE_URL": "mqtt://host"}

    def who(address: Address) -> tuple[str | None, str | None, str | None]:
        return address.user, address.password, address.token

    assert who(parse(environment=environment)) == ("eve", "e", None)
    assert who(parse("mqtt://anna:a%40b@h", environment=environment)) == ("anna", "a@b", None)
    assert who(parse("mqtt://anna@h", environment=environment)) == ("anna", "e", None)
    assert who(parse("mqtt://h?token=t", environment=environment)) == (None, None, "t")
    assert who(parse("mqtt://anna:a@h", user="bert", password="b", environment=environment)) == ("bert", "b", None)
    assert who(parse("mqtt://h", token="t", environment=NOTHING)) == (None, None, "t")
    assert who(parse("mqtt://h", environment={"POLYWIRE_TOKEN": "t"})) == (None, None, "t")


def test_without_any_url_the_variable_is_named() -> None:
    with pytest.raises(AddressError, match="POLYWIRE_URL"):
        parse(environment=NOTHING)


def test_credentials_stand_in_no_text() -> None:
    address = parse("mqtt://anna:geheim@host", environment=NOTHING)
    token = parse("umq://host?token=geheim", environment=NOTHING)
    assert "geheim" not in repr(address) + str(address) + repr(token) + str(token)
    for url in (
        "mqtt://anna:ge/heim@host",
        "geheim:mqtt://host",
        "mqtt://anna:geheim@host:x",
        "mqtt://a:geheim@host/p",
    ):
        with pytest.raises(AddressError) as caught:
            parse(url, environment=NOTHING)
        assert "heim" not in str(caught.value)
