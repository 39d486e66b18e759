"""Every example of MicroMsg2's document, byte for byte, against a running hub (or our client, for what a server says).

Examples that can't work as they are printed are in ``NOT_AS_PRINTED``, with the reason; the page's deviations have them
too. Each has a test that shows what the hub makes of it, and one with the mistake corrected.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from polywire.protocols.micromsg import connect
from polywire.protocols.micromsg.frames import Error, Extension, Handshake, Message
from polywire.protocols.micromsg.text import NamedExtension, batch_ack
from tests.client.loops import run
from tests.hub_process import HubProcess, running_hub
from tests.protocols.micromsg.wire import PING, PONG, client, command, extension, hello, message

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "micromsg.md"

HULK = b"\x01\x00\x00\x04hulk\x00\x0bjson;dotnet\x00\x00"
SRVER = b"\x01\x00\x00\x05srver\x00\x00\x00\x09batch-ack"
HULK_AGAIN = b"\x01\x00\x00\x04hulk\x00\x0bjson;dotnet\x00\x09batch-ack"
TYPE_NAME = b"OneTrueError.Contracts.Reports,OneTrueError.Client"
JONAS = b"first_name:jonas;twitter:jgauffin;"
TWO_PROPERTIES = b"extensionName1:propName1=propValue2,propName2=Hello%20%25%20mother%20fucker!;"

NOT_AS_PRINTED = {
    "the length of `json;dotnet` as 10": "the length is 11: the hub reads on in the wrong place",
    "flags 4 in the examples of extension frames": "4 is an ERROR frame, an EXTENSION is 2",
    "none of the extension's number in that of `dotnet`": "the layout of an EXTENSION frame has one",
    "65534, 65534, 1, 2, 3": "65534 is followed by 65535, as the paragraph below says",
    "`CommandName;key=value,key=value,key=value`": "it shows the form; one key three times is a mistake",
    "A, B, C, X, Y and Z": "the letters stand for extensions, and the hub requires none",
    "the server's `srver` with a bare `batch-ack`": "the hub has its own name and always writes the count",
    "the server's `json;ack;batch-ack`": "the reply names one of the two that exclude each other",
    "the sample loop for acks": "it is not on the wire",
}
"""What the page calls it, and why the hub can't take or say it byte for byte."""


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


@pytest.fixture
def address(hub: HubProcess) -> str:
    return hub.addresses["micromsg"]


@pytest.mark.parametrize("example", NOT_AS_PRINTED)
def test_what_can_not_be_as_printed_is_on_the_page(example: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert example in text[text.index("## Deviations") :]


# Reliable, Extensions.


@pytest.mark.rule("MICROMSG-07", "MICROMSG-111")
def test_batch_ack_with_a_count_json_and_dotnet_are_required(address: str) -> None:
    with client(address) as one:
        reply = one.shake(hello(b"batch-ack:count=10;json;dotnet"))
        assert reply == Handshake("polywire", (), (batch_ack(10),))
        one.send(b"".join(message(number, b"topic/reliable", b"{}") for number in range(1, 11)))
        acked = b""
        while acked != b"\0\x0a":  # all ten, in as many acks as the hub likes
            frame = one.hear()
            assert isinstance(frame, Extension)
            assert frame.number == 1
            acked = frame.payload


# Handshake.


@pytest.mark.rule("MICROMSG-16", "MICROMSG-14", "MICROMSG-189")
def test_a_and_b_are_extensions_the_hub_does_not_know(address: str) -> None:
    with client(address) as one:
        one.send(hello(b"A;B", b"X;Y"))
        assert one.refused() == Error("unsupported-extension", (("name", "A"),))
    with client(address) as one:  # the same in known ones: required A, B; of the optional X, Y the server likes Y
        reply = one.shake(hello(b"json;dotnet", b"X;pub-sub"), hello(b"json;dotnet", b"pub-sub;batch-ack"))
        assert reply.required == ()
        assert reply.optional == (NamedExtension("pub-sub"), batch_ack(10))


@pytest.mark.rule("MICROMSG-22", "MICROMSG-106", "MICROMSG-189")
@pytest.mark.parametrize(
    ("listed", "known"),
    [
        (TWO_PROPERTIES, ()),
        (b"json;xml;protobuf", ("json",)),
        (b"batch-ack:max-count=10;json;microauth", ("batch-ack", "json")),
    ],
)
def test_the_examples_of_the_format_are_understood(address: str, listed: bytes, known: tuple[str, ...]) -> None:
    with client(address) as one:
        reply = one.shake(hello(b"", listed), hello(b"", ";".join(known).encode()))
        assert [each.name for each in reply.optional if each.name in known] == list(known)
        assert {each.name for each in reply.optional} <= {*known, "batch-ack"}
    with client(address) as one:
        one.send(hello(listed))
        assert one.refused().name == "unsupported-extension"


@pytest.mark.rule("MICROMSG-28", "MICROMSG-97")
def test_the_client_s_request_has_a_wrong_length_in_print() -> None:
    # The last letter is read as part of the next length, so the hub waits for 29,696 bytes more.
    with running_hub("limits.handshake_time=1 s") as hasty, client(hasty.addresses["micromsg"]) as one:
        one.send(b"\x01\x00\x00\x04hulk\x00\x0ajson;dotnet\x00\x00")
        assert one.refused().name == "bad-handshake"


@pytest.mark.rule("MICROMSG-28", "MICROMSG-30", "MICROMSG-33", "MICROMSG-34")
def test_the_complete_handshake(address: str) -> None:
    with client(address) as one:
        one.send(HULK)
        expected = b"\x01\x00\x00\x08polywire\x00\x00\x00\x16batch-ack:max-count=10"
        assert one.expect(len(expected)) == expected
        one.send(HULK_AGAIN)
        # json is 1, dotnet is 2, batch-ack is 3.
        one.send(extension(2, TYPE_NAME) + message(1, b"commands", b"{}"))
        assert one.expect(5) == b"\x02\x03\x02\x00\x01"
        one.send(extension(1, b""))
        assert b"json has no frames".replace(b" ", b"%20") in one.rest()


@pytest.mark.rule("MICROMSG-29", "MICROMSG-28", "MICROMSG-30", "MICROMSG-112")
def test_our_client_says_what_hulk_says_and_understands_srver() -> None:
    async def main() -> None:
        heard: list[bytes] = []
        counted = HULK[:-2] + b"\x00\x16batch-ack:max-count=10"

        async def srver(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.readexactly(len(HULK)))
            writer.write(SRVER)
            heard.append(await reader.readexactly(len(counted)))
            await reader.read()
            writer.close()
            await writer.wait_closed()
            ended.set()

        ended = asyncio.Event()
        async with await asyncio.start_server(srver, "127.0.0.1", 0) as listener:
            url = f"micromsg://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            async with connect(url, identity="hulk", required=("json", "dotnet"), optional=()) as peer:
                assert peer.agreement is not None
                assert [peer.agreement.number(name) for name in ("json", "dotnet", "batch-ack")] == [1, 2, 3]
                assert peer.agreement.window == 10
                assert peer.agreement.peer == "srver"
            await ended.wait()
        assert heard == [HULK, counted]

    run(main)


@pytest.mark.rule("MICROMSG-31", "MICROMSG-116")
def test_the_negotiation_of_optional_frames_ends_with_json(address: str) -> None:
    with client(address) as one:
        reply = one.shake(hello(b"", b"json;xml;protobuf;"), hello(b"", b"json"))
        assert reply.optional == (NamedExtension("json"), batch_ack(10))
        one.send(command(b"SUBSCRIBE;destination=commands"))
        assert one.hear() == Error("unknown-command", (("name", "subscribe"),))  # pub-sub was not agreed on
        one.send(b"".join(message(number, b"topic/no-acks", b"1") for number in range(1, 31)))
        one.settled()  # no acks, and no window


@pytest.mark.rule("MICROMSG-31")
def test_our_client_chooses_from_the_server_s_example() -> None:
    async def main() -> None:
        offer = hello(b"", b"json;x-xml;x-protobuf", b"c")
        final = hello(b"", b"json;batch-ack:max-count=10", b"c")

        async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert await reader.readexactly(len(offer)) == offer
            writer.write(hello(b"", b"json;ack;batch-ack", b"s"))
            got.set_result(await reader.readexactly(len(final)))
            await reader.read()
            writer.close()
            await writer.wait_closed()
            ended.set()

        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        ended = asyncio.Event()
        async with await asyncio.start_server(server, "127.0.0.1", 0) as listener:
            url = f"micromsg://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            async with connect(url, identity="c", optional=("json", "x-xml", "x-protobuf")):
                assert await got == final  # json, and of the two that exclude each other the better one
            await ended.wait()

    run(main)


# Frames.


@pytest.mark.rule("MICROMSG-53", "MICROMSG-142", "MICROMSG-143", "MICROMSG-48")
@pytest.mark.parametrize("destination", [b"commands", b"topic/domain-events"])
def test_the_example_destinations_and_properties_cross_the_hub(address: str, destination: bytes) -> None:
    with client(address) as one:
        one.shake(hello(b"pub-sub"))
        one.subscribe(destination.replace(b"/", b"%2F"), b",filter=twitter%3DTjgauffin%3Bfirst_name%3DTjonas")
        one.send(message(1, destination, b"21", JONAS))
        assert one.hear() == Message(1, destination.decode(), b"21", "first_name:Tjonas;twitter:Tjgauffin;")


@pytest.mark.rule("MICROMSG-57", "MICROMSG-163", "MICROMSG-190")
def test_the_form_of_commands_names_one_key_three_times(address: str) -> None:
    with client(address) as one:
        one.shake(hello(b"pub-sub"))
        one.send(command(b"CommandName;key=value"))
        assert one.hear() == Error("unknown-command", (("name", "commandname"),))
        one.send(command(b"CommandName;key=value,key=value,key=value"))
        assert one.refused().name == "bad-frame"


@pytest.mark.rule("MICROMSG-63", "MICROMSG-38", "MICROMSG-39")
def test_the_example_ack_is_of_flag_2_and_acknowledges_1_2_3_and_4(address: str) -> None:
    with client(address) as one, client(address) as publisher:
        one.shake(hello(b"pub-sub;batch-ack:max-count=4"))
        one.subscribe(b"topic%2Ffour")
        publisher.shake(hello())
        publisher.send(b"".join(message(number, b"topic/four", b"") for number in range(1, 9)))
        publisher.settled()
        for numbers in (range(1, 5), range(5, 9)):
            assert [one.hear() for _ in numbers] == [Message(number, "topic/four", b"") for number in numbers]
            one.settled()  # the window is closed
            if numbers[0] == 1:
                one.send(bytes([2, 2, 2, 0, 4]))
        one.send(bytes([4, 2, 2, 0, 4]))
        assert one.refused().name == "bad-frame"


# batch-ack.


@pytest.mark.rule("MICROMSG-66", "MICROMSG-110", "MICROMSG-109", "MICROMSG-65")
@pytest.mark.parametrize(("listed", "count"), [(b"batch-ack:max-count:100;", 100), (b"batch-ack;", 10)])
def test_the_example_counts_are_understood(address: str, listed: bytes, count: int) -> None:
    with client(address) as one:
        assert one.shake(hello(listed)).optional == (batch_ack(count),)
    with client(address) as one:
        assert one.shake(hello(b"", listed)).optional == (batch_ack(count),)


@pytest.mark.rule("MICROMSG-69", "MICROMSG-118", "MICROMSG-128")
def test_after_65533_an_ack_of_3_acknowledges_five_messages(address: str) -> None:
    def sent(first: int, count: int) -> bytes:
        return b"".join(message((number - 1) % 65535 + 1, b"topic/w", b"") for number in range(first, first + count))

    with client(address) as one, client(address) as publisher:
        one.shake(hello(b"pub-sub;batch-ack:max-count=1000"))
        one.subscribe(b"topic%2Fw")
        publisher.shake(hello())
        for first in range(1, 65534, 1000):
            count = min(1000, 65534 - first)
            publisher.send(sent(first, count))
            expected = sent(first, count)
            assert one.expect(len(expected)) == expected
            one.send(extension(2, (first + count - 1).to_bytes(2, "big")))
        five = sent(65534, 5)
        assert [int.from_bytes(five[at + 1 : at + 3], "big") for at in range(0, len(five), 14)] == [
            65534,
            65535,
            1,
            2,
            3,
        ]
        publisher.send(five)
        assert one.expect(len(five)) == five
        one.send(b"\x02\x02\x02\x00\x03")
        # All five are acknowledged: a whole window fits again, and none of them is pending.
        publisher.send(sent(65539, 1001))
        expected = sent(65539, 1000)
        assert one.expect(len(expected)) == expected
        one.send(PING)
        assert one.hear() == PONG
        one.send(extension(2, b"\xff\xfe"))
        assert one.refused().name == "bad-ack"


# DOTNET.


@pytest.mark.rule("MICROMSG-73", "MICROMSG-70", "MICROMSG-71")
def test_the_example_type_goes_with_its_message_and_the_next(address: str) -> None:
    with client(address) as one:
        one.shake(hello(b"pub-sub;dotnet"))
        one.subscribe(b"topic%2Freports")
        one.send(b"\x02\x02\x32" + TYPE_NAME)
        one.send(message(1, b"topic/reports", b"1") + message(2, b"topic/reports", b"2"))
        for number in (1, 2):
            assert one.hear() == Extension(2, TYPE_NAME)
            assert one.hear() == Message(number, "topic/reports", b"%d" % number)
        one.send(b"\x04\x32" + TYPE_NAME)
        assert one.refused().name == "bad-frame"


# PUB/SUB.


@pytest.mark.rule("MICROMSG-77", "MICROMSG-78", "MICROMSG-79", "MICROMSG-80", "MICROMSG-82")
@pytest.mark.parametrize("value", [b"N1", b"D1413198000.0", b"THello%20%22world%22"])
def test_the_example_values_are_filtered_by_and_cross_the_hub(address: str, value: bytes) -> None:
    with client(address) as one:
        one.shake(hello(b"pub-sub"))
        one.subscribe(b"topic%2Fvalues", b",filter=value%3D" + value.replace(b"%", b"%25"))
        one.send(message(1, b"topic/values", b"other", b"value:N2;"))
        one.send(message(2, b"topic/values", b"same", b"value:" + value + b";"))
        assert one.hear() == Message(1, "topic/values", b"same", f"value:{value.decode()};")


@pytest.mark.rule("MICROMSG-83", "MICROMSG-84", "MICROMSG-85", "MICROMSG-86", "MICROMSG-87", "MICROMSG-88")
@pytest.mark.parametrize(
    ("operator", "operand", "passes", "fails"),
    [
        (b"=", b"Hello", b"Hello", b"hello"),
        (b"<", b"He", b"Hello", b"ello"),
        (b">", b"lo", b"Hello", b"Hell"),
        (b"!=", b"Hello", b"hello", b"Hello"),
        (b"~", b"ell", b"Hallo", b"Hello"),
        (b"&", b"ell", b"Hello", b"Hallo"),
    ],
)
def test_the_operators_for_texts(address: str, operator: bytes, operand: bytes, passes: bytes, fails: bytes) -> None:
    escaped = b"".join(b"%%%02X" % byte for byte in operator)
    with client(address) as one:
        one.shake(hello(b"pub-sub"))
        one.send(command(b"subscribe;destination=topic%2Ftexts,filter=text%3C%3DT" + operand))
        refused = one.hear()
        assert isinstance(refused, Error)
        assert refused.name == "bad-filter"
        one.subscribe(b"topic%2Ftexts", b",filter=text" + escaped + b"T" + operand)
        one.send(message(1, b"topic/texts", b"no", b"text:T" + fails + b";"))
        one.send(message(2, b"topic/texts", b"yes", b"text:T" + passes + b";"))
        assert one.hear() == Message(1, "topic/texts", b"yes", f"text:T{passes.decode()};")
