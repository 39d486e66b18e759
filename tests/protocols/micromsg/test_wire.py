"""MicroMsg2 over sockets, on a running hub: numbers of extensions, counts, names, and frames of vendor extensions."""

import base64
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from polywire.protocols.micromsg.frames import Error, Extension, Message
from polywire.protocols.micromsg.text import NamedExtension, batch_ack
from tests.hub_process import HubProcess, running_hub
from tests.interop.speakers import speak
from tests.protocols.micromsg.wire import PING, PONG, client, command, extension, hello, message

VENDOR = (b"pub-sub", b"x-colour;x-size")


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


@pytest.fixture
def address(hub: HubProcess) -> str:
    return hub.addresses["micromsg"]


@pytest.mark.rule("MICROMSG-33", "MICROMSG-167")
@pytest.mark.parametrize("use", [b"pub-sub;batch-ack", b"pub-sub", b"pub-sub;dotnet"])
@pytest.mark.parametrize("number", [0, 3, 255])
def test_an_extension_that_was_not_agreed_on_is_a_bad_frame_and_does_nothing(
    address: str, use: bytes, number: int
) -> None:
    with client(address) as subscriber, client(address) as smuggler:
        subscriber.shake(hello(b"pub-sub;dotnet"))
        subscriber.subscribe(b"topic%2Fsmuggled")
        smuggler.shake(hello(use))
        smuggler.send(extension(number, b"Smuggled.Type") + message(1, b"topic/smuggled", b"21"))
        error = smuggler.refused()
        assert error.name == "bad-frame"
        assert "extension" in (error.value("reason") or "")
        subscriber.settled()


@pytest.mark.rule("MICROMSG-107")
@pytest.mark.parametrize(
    ("offer", "replied"),
    [
        (b"batch-ack:max-count=5", 5),
        (b"batch-ack:count=300", 300),
        (b"batch-ack:max-count=60000", 1000),
        (b"batch-ack", 10),
        (b"json", 10),
    ],
)
def test_the_reply_never_raises_the_count_and_the_final_message_keeps_to_it(
    address: str, offer: bytes, replied: int
) -> None:
    with client(address) as one:
        reply = one.shake(hello(b"", offer), hello(b"", b"batch-ack"))
        assert batch_ack(replied) in reply.optional
        # A final message without a count takes the reply's: as many come before the first ack.
        one.send(b"".join(message(number, b"topic/count", b"1") for number in range(1, replied + 1)))
        acked = 0
        while acked < replied:
            frame = one.hear()
            assert isinstance(frame, Extension)
            acked = int.from_bytes(frame.payload, "big")
    with client(address) as one:
        one.send(hello(b"", offer))
        one.hear()
        one.send(hello(b"", b"batch-ack:max-count=%d" % (replied + 1)))
        error = one.refused()
        assert (error.name, error.value("name")) == ("bad-handshake", "batch-ack")


@pytest.mark.rule("MICROMSG-107")
def test_a_final_message_without_a_count_lets_no_more_through_than_the_reply(address: str) -> None:
    with client(address) as subscriber, client(address) as publisher:
        subscriber.shake(hello(b"pub-sub", b"batch-ack:max-count=3"), hello(b"pub-sub", b"batch-ack"))
        subscriber.subscribe(b"topic%2Fthree")
        publisher.shake(hello())
        publisher.send(b"".join(message(number, b"topic/three", b"1") for number in range(1, 6)))
        publisher.settled()
        assert [subscriber.hear(), subscriber.hear(), subscriber.hear()] == [
            Message(number, "topic/three", b"1") for number in (1, 2, 3)
        ]
        subscriber.settled()
        subscriber.send(extension(2, b"\0\x03"))
        assert subscriber.hear() == Message(4, "topic/three", b"1")


@pytest.mark.rule("MICROMSG-116")
@pytest.mark.parametrize(
    ("required", "optional"), [(b"", b"ack;batch-ack"), (b"batch-ack", b"ack"), (b"ack", b"batch-ack")]
)
def test_where_both_are_offered_the_reply_names_batch_ack_only(address: str, required: bytes, optional: bytes) -> None:
    with client(address) as one:
        assert one.shake(hello(required, optional)).optional == (batch_ack(10),)


@pytest.mark.rule("MICROMSG-189", "MICROMSG-106")
def test_an_optional_extension_with_upper_case_letters_is_left_out(address: str) -> None:
    unknown = b"extensionName1:propName1=propValue2,propName2=Hello%20%25%20mother%20fucker!;JSON;X-Other"
    with client(address) as one:
        reply = one.shake(hello(b"pub-sub", unknown), hello(b"pub-sub"))
        assert reply.optional == (batch_ack(10),)
    with client(address) as one:
        one.send(hello(b"extensionName1"))
        assert one.refused() == Error("unsupported-extension", (("name", "extensionName1"),))


@pytest.mark.rule("MICROMSG-190")
def test_commands_are_known_in_any_case(address: str) -> None:
    with client(address) as one:
        one.shake(hello(b"pub-sub"))
        one.send(command(b"SUBSCRIBE;destination=topic%2Fcase") + command(b"Ping"))
        assert one.hear() == PONG
        one.send(message(1, b"topic/case", b"21"))
        assert one.hear() == Message(1, "topic/case", b"21")
        one.send(command(b"UnSubscribe;destination=topic%2Fcase") + message(2, b"topic/case", b"22"))
        one.settled()
        one.send(command(b"Publish"))
        assert one.hear() == Error("unknown-command", (("name", "publish"),))


@pytest.mark.rule("MICROMSG-180", "MICROMSG-139")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_not_json_waits_in_its_queue_for_one_who_takes_it_across_a_restart(
    tmp_path: Path, how: signal.Signals
) -> None:
    with running_hub(journal=tmp_path) as hub, client(hub.addresses["micromsg"]) as sender:
        sender.shake(hello(b"batch-ack"))
        with client(hub.addresses["micromsg"]) as consumer:
            consumer.shake(hello(b"pub-sub;json;batch-ack"))
            consumer.subscribe(b"jobs")
            sender.send(message(1, b"jobs", b"not JSON") + message(2, b"jobs", b"[1]") + message(3, b"jobs", b"\xff"))
            assert consumer.hear() == Message(1, "jobs", b"[1]")
            consumer.send(extension(3, b"\0\x01"))
            consumer.settled()
        acked = b""
        while acked != b"\0\x03":
            frame = sender.hear()
            assert isinstance(frame, Extension)
            acked = frame.payload
        hub.stop(how)
    with running_hub(journal=tmp_path) as hub, client(hub.addresses["micromsg"]) as choosy:
        choosy.shake(hello(b"pub-sub;json;batch-ack"))
        choosy.send(command(b"subscribe;destination=jobs") + PING)
        while (frame := choosy.hear()) != PONG:  # what it acknowledged just before a crash may come again
            assert frame == Message(1, "jobs", b"[1]")
        with client(hub.addresses["micromsg"]) as other:
            other.shake(hello(b"pub-sub;batch-ack"))
            other.send(command(b"subscribe;destination=jobs"))
            assert [other.hear(), other.hear()] == [Message(1, "jobs", b"not JSON"), Message(2, "jobs", b"\xff")]
            other.send(extension(2, b"\0\x02"))
            other.settled()
        choosy.settled()


class TestVendorFrames:
    @pytest.mark.rule("MICROMSG-192", "MICROMSG-193")
    def test_they_go_before_the_message_to_each_who_agreed_on_them_under_its_own_number(self, address: str) -> None:
        with client(address) as sender, client(address) as both, client(address) as one, client(address) as none:
            sender.shake(hello(*VENDOR))
            reply = both.shake(hello(b"json;pub-sub", b"x-size:unit=cm;batch-ack;x-colour"))
            assert reply.optional == (NamedExtension("x-size"), batch_ack(10), NamedExtension("x-colour"))
            one.shake(hello(b"pub-sub;dotnet", b"x-other;x-size"))
            none.shake(hello(b"pub-sub"))
            for each in (both, one, none):
                each.subscribe(b"topic%2Fvendor")
            payload = bytes(range(256))
            large = b"\x0a\x02\0\0\x01\0" + payload
            sender.send(large + extension(3, b"1") + extension(2, b"") + message(1, b"topic/vendor", b"21"))
            sender.send(message(2, b"topic/vendor", b"22"))
            first, second = Message(1, "topic/vendor", b"21"), Message(2, "topic/vendor", b"22")
            assert [both.hear() for _ in range(5)] == [
                Extension(5, payload),
                Extension(3, b"1"),
                Extension(5, b""),
                first,
                second,
            ]
            assert [one.hear() for _ in range(3)] == [Extension(4, b"1"), first, second]
            assert [none.hear(), none.hear()] == [first, second]

    @pytest.mark.rule("MICROMSG-193")
    @pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
    def test_they_wait_with_a_queued_message_and_survive_a_restart(self, tmp_path: Path, how: signal.Signals) -> None:
        with running_hub(journal=tmp_path) as hub, client(hub.addresses["micromsg"]) as sender:
            sender.shake(hello(b"batch-ack", b"x-colour"))
            sender.send(extension(2, b"\0\xff") + extension(2, b"twice") + message(1, b"jobs", b"1", b"room:N12;"))
            assert sender.hear() == Extension(1, b"\0\x01")
            hub.stop(how)
        with running_hub(journal=tmp_path) as hub, client(hub.addresses["micromsg"]) as consumer:
            consumer.shake(hello(b"pub-sub", b"x-size;x-colour"))
            consumer.send(command(b"subscribe;destination=jobs"))
            assert [consumer.hear() for _ in range(3)] == [
                Extension(3, b"\0\xff"),
                Extension(3, b"twice"),
                Message(1, "jobs", b"1", "room:N12;"),
            ]

    @pytest.mark.rule("MICROMSG-193")
    def test_they_wait_for_the_window_with_their_message_and_come_again_when_it_is_delivered_again(
        self, address: str
    ) -> None:
        with client(address) as sender, client(address) as second:
            sender.shake(hello(b"", b"x-colour"))
            second.shake(hello(b"pub-sub", b"x-colour"))
            with client(address) as first:
                first.shake(hello(b"pub-sub;ack", b"x-colour"))
                first.subscribe(b"topic%2Fwindow")
                first.subscribe(b"colours")
                for number, name in enumerate((b"topic/window", b"topic/window", b"colours"), 1):
                    sender.send(extension(1, b"%d" % number) + message(number, name, b""))
                for number, destination in enumerate(("topic/window", "topic/window", "colours"), 1):
                    assert first.hear() == Extension(3, b"%d" % number)
                    assert first.hear() == Message(number, destination, b"")
                    if number < 3:
                        first.send(extension(2, number.to_bytes(2, "big")))
            second.send(command(b"subscribe;destination=colours"))
            assert [second.hear(), second.hear()] == [
                Extension(2, b"3"),
                Message(1, "colours", b"", "polywire-deliveries:N2;"),
            ]

    @pytest.mark.rule("MICROMSG-192")
    def test_a_vendor_extension_that_is_required_is_refused(self, address: str) -> None:
        with client(address) as one:
            one.send(hello(b"pub-sub;x-colour"))
            assert one.refused() == Error("unsupported-extension", (("name", "x-colour"),))

    @pytest.mark.rule("MICROMSG-193", "MICROMSG-170")
    def test_x_auth_has_no_frames_to_pass_on(self, address: str) -> None:
        login = b"x-auth:user=,password="
        with client(address) as one:
            one.send(hello(b"", login))
            one.hear()
            one.send(hello(b"", login) + extension(1, b"secret") + message(1, b"topic/secret", b""))
            assert one.refused().value("reason") == "x-auth has no frames"

    @pytest.mark.rule("MICROMSG-193")
    def test_without_a_message_behind_them_they_are_dropped_with_the_connection(self, address: str) -> None:
        with client(address) as subscriber:
            subscriber.shake(hello(*VENDOR))
            subscriber.subscribe(b"topic%2Falone")
            with client(address) as sender:
                sender.shake(hello(*VENDOR))
                sender.send(extension(2, b"alone"))
                sender.settled()
            with client(address) as sender:
                sender.shake(hello(*VENDOR))
                sender.send(message(1, b"topic/alone", b"1"))
                assert subscriber.hear() == Message(1, "topic/alone", b"1")

    @pytest.mark.rule("MICROMSG-193")
    def test_a_message_that_is_refused_takes_its_frames_along(self, address: str) -> None:
        with client(address) as one:
            one.shake(hello(*VENDOR))
            one.subscribe(b"topic%2Frefused")
            one.send(extension(2, b"red") + message(1, b"topic/*", b"1") + message(2, b"topic/refused", b"2"))
            refused = one.hear()
            assert isinstance(refused, Error)
            assert refused.name == "no-such-destination"
            assert one.hear() == Message(1, "topic/refused", b"2")

    @pytest.mark.rule("MICROMSG-194")
    @pytest.mark.parametrize(
        ("fits", "exceeds"),
        [
            (extension(2, b"x") * 16, extension(2, b"x") * 17),
            (b"\x0a\x02\0\0\x40\0" + bytes(16384), b"\x0a\x02\0\0\x40\0" + bytes(16384) + extension(3, b"x")),
        ],
        ids=["count", "bytes"],
    )
    def test_there_is_a_limit_before_each_message(self, address: str, fits: bytes, exceeds: bytes) -> None:
        with client(address) as subscriber, client(address) as sender:
            subscriber.shake(hello(*VENDOR))
            subscriber.subscribe(b"topic%2Flimit")
            sender.shake(hello(*VENDOR))
            for number in (1, 2):
                sender.send(fits + message(number, b"topic/limit", b"1"))
                while not isinstance(subscriber.hear(), Message):
                    pass
            sender.send(exceeds + message(3, b"topic/limit", b"1"))
            assert sender.refused().name == "too-large"
            subscriber.settled()

    @pytest.mark.rule("MICROMSG-193")
    @pytest.mark.parametrize("protocol", ["umq-envelope", "sabc"])
    def test_other_protocols_have_them_as_a_header(self, hub: HubProcess, protocol: str) -> None:
        colour = base64.b64encode(b"\0\xff").decode()
        with speak(protocol, hub.addresses) as speaker, client(hub.addresses["micromsg"]) as one:
            speaker.subscribe(f"{protocol}/there")
            one.shake(hello(*VENDOR))
            one.send(extension(2, b"\0\xff") + extension(3, b"") + message(1, f"topic/{protocol}/there".encode(), b"1"))
            header = f"x-colour={colour} x-size="
            assert speaker.receive().headers == {"micromsg.extensions": header}
            one.subscribe(f"topic%2F{protocol}%2Fback".encode())
            speaker.publish(f"{protocol}/back", b"2", headers={"micromsg.extensions": f"{header} x-other= x-size=? x"})
            assert [one.hear() for _ in range(3)] == [
                Extension(2, b"\0\xff"),
                Extension(3, b""),
                Message(1, f"topic/{protocol}/back", b"2"),
            ]
