"""What travels beside a payload on the hub's side of MicroMsg2: types, properties, JSON."""

import pytest

from polywire.hub.message import Date, Message
from polywire.protocols.micromsg.frames import Error, Extension
from polywire.protocols.micromsg.frames import Message as Frame
from tests.protocols.micromsg.talk import Talker, heard, published
from tests.sessions import Site


@pytest.fixture
def site() -> Site:
    return Site()


class TestTypes:
    @pytest.mark.rule("MICROMSG-149")
    def test_the_type_is_a_header_elsewhere_and_sticks(self, site: Site) -> None:
        recorder = heard(site, "a")
        sender = Talker(site, "dotnet")
        sender.tell(Extension(1, b"Shop.Order, Shop")).send("topic/a", b"1").send("topic/a", b"2")
        sender.tell(Extension(1, b"")).send("topic/a", b"3")
        assert [message.headers for message in recorder.got] == [
            (("dotnet-type", "Shop.Order, Shop"),),
            (("dotnet-type", "Shop.Order, Shop"),),
            (),
        ]

    def test_a_header_becomes_the_type_and_an_empty_one_is_told(self, site: Site) -> None:
        talker = Talker(site, "dotnet;pub-sub").subscribe("topic/a")
        published(site, Message("a", b"0"))
        published(site, Message("a", b"1", headers=(("dotnet-type", "X"), ("n", 1))))
        published(site, Message("a", b"2"))
        assert talker.frames() == [
            Frame(1, "topic/a", b"0"),
            Extension(1, b"X"),
            Frame(2, "topic/a", b"1", "n:N1;"),
            Extension(1, b""),
            Frame(3, "topic/a", b"2"),
        ]

    def test_without_dotnet_the_type_is_a_property(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a")
        Talker(site, "dotnet").tell(Extension(1, b"X")).send("topic/a", b"1")
        assert talker.frames() == [Frame(1, "topic/a", b"1", "dotnet-type:TX;")]

    def test_a_queue_s_message_has_its_type_too(self, site: Site) -> None:
        talker = Talker(site, "dotnet;pub-sub").subscribe("jobs")
        published(site, Message("queue/jobs", b"1", headers=(("dotnet-type", "X"),)))
        assert talker.frames() == [Extension(1, b"X"), Frame(1, "jobs", b"1")]


class TestHeaders:
    @pytest.mark.rule("MICROMSG-179")
    def test_properties_are_headers_with_their_types(self, site: Site) -> None:
        recorder = heard(site, "a")
        text = "room:N12;share:N1.5;at:D1413198000.5;name:Ta%20b;first_name:jonas;content-type:Ttext%2Fplain;"
        Talker(site).send("topic/a", b"1", text)
        (message,) = recorder.got
        assert message.content_type == "text/plain"
        assert message.headers == (
            ("room", 12),
            ("share", 1.5),
            ("at", Date(1413198000.5)),
            ("name", "a b"),
            ("first_name", "jonas"),
        )

    @pytest.mark.rule("MICROMSG-179")
    def test_headers_are_properties_and_what_can_not_be_one_stays_behind(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/a")
        headers = (
            ("X.Name", "é"),
            ("n", 1 << 70),
            ("x", float("nan")),
            ("at", Date(1e300)),
            ("then", Date(1413198000.25)),
            ("half", 0.5),
            ("bad", "\ud800"),
            ("", "nameless"),
            ("much", "x" * 65530),
            ("last", 1),
        )
        published(site, Message("a", b"1", "text/plain", headers, (b"attachment",)))
        text = "x-name:T%C3%A9;then:D1413198000.25;half:N0.5;last:N1;content-type:Ttext%2Fplain;"
        assert talker.frames() == [Frame(1, "topic/a", b"1", text)]

    def test_a_topic_too_long_for_a_destination_is_dropped_and_counted(self, site: Site) -> None:
        talker = Talker(site).subscribe("topic/**")
        published(site, Message("a" * 250, b"1"))
        assert talker.frames() == []
        assert talker.wire.client.counters.dropped == {"unencodable": 1}

    def test_a_message_is_encoded_once_for_all_connections_of_a_form(self, site: Site) -> None:
        talkers = [Talker(site).subscribe("topic/a") for _ in range(3)]
        published(site, Message("other", b""))
        message = Message("a", b"1")
        published(site, message)
        assert list(message.encoded) == [16]
        assert [talker.messages() for talker in talkers] == [[("topic/a", b"1")]] * 3


class TestJson:
    def test_what_is_not_json_ends_the_connection_that_agreed_on_it(self, site: Site) -> None:
        recorder = heard(site, "a")
        talker = Talker(site, "json")
        talker.send("topic/a", b'{"a": 1}').send("topic/a", b"{a: 1}")
        (error,) = talker.frames()
        assert isinstance(error, Error)
        assert error.name == "bad-frame"
        assert talker.closed
        assert [(message.body, message.content_type) for message in recorder.got] == [(b'{"a": 1}', "application/json")]

    @pytest.mark.rule("MICROMSG-180")
    def test_what_others_publish_that_is_not_json_is_dropped_and_counted(self, site: Site) -> None:
        talker = Talker(site, "json;pub-sub").subscribe("topic/a")
        published(site, Message("a", b"no"))
        published(site, Message("a", b"[1]", "application/json"))
        assert talker.frames() == [Frame(1, "topic/a", b"[1]")]
        assert talker.wire.client.counters.dropped == {"not-json": 1}

    @pytest.mark.rule("MICROMSG-180")
    def test_a_queue_keeps_what_is_not_json_for_those_who_take_it(self, site: Site) -> None:
        talker = Talker(site, "json;pub-sub").subscribe("jobs")
        published(site, Message("queue/jobs", b"no"))
        published(site, Message("queue/jobs", b"[1]"))
        assert talker.messages() == [("jobs", b"[1]")]
        assert Talker(site).subscribe("jobs").messages() == [("jobs", b"no")]


def test_a_type_frame_wins_over_a_property_of_that_name(site: Site) -> None:
    recorder = heard(site, "a")
    Talker(site, "dotnet").tell(Extension(1, b"X")).send("topic/a", b"", "dotnet-type:TY;n:N1;")
    assert recorder.got[0].headers == (("n", 1), ("dotnet-type", "X"))
