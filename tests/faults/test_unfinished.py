"""Memory that clients fill together: messages of which only a part has arrived, and messages in queues.

Whoever passes a limit is refused in its protocol's words; the others go on.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polywire.protocols.micromsg import Error
from tests.faults.friends import FRIENDS, Friend, HungUpError, SabcFriend, WebSocketLine, friend, masked
from tests.faults.test_hub_limits import answer_to_publishing
from tests.hub_process import HubProcess, running_hub

KIB = 1024
MIB = 1024 * KIB
RULES = ("SABC-143", "MICROMSG-198", "MQTT-206", "UMQ-169", "FMQP-81")
TOTAL = "the hub's limit for unfinished messages is reached; try again later"
OWN = "your unfinished messages have more than 614400 bytes"


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub("limits.unfinished_size=1 MiB", "limits.unfinished_size_per_client=600 KiB") as process:
        yield process


def octets(client: Friend, key: str, size: int) -> bytes:
    """A publication of this size as it is on the wire."""
    data = client.push("t", b"x" * size)
    return masked(FRIENDS[key][1], data) if isinstance(client.line, WebSocketLine) else data


def counted(hub: HubProcess, condition: Callable[[float], bool]) -> None:
    """Wait until the hub has read what was sent."""
    end = time.monotonic() + 20
    while not condition(found := hub.metric("polywire_unfinished_bytes")):
        assert time.monotonic() < end, found


def last_words(client: Friend) -> str:
    said: list[str] = []
    with contextlib.suppress(HungUpError, ConnectionError):
        while True:
            said.append(str(client.word()))
    return " ".join(said)


def expected(key: str, reason: str) -> str:
    name = key.partition("_")[0]
    return {
        "umq": f"F0:9 Limit exceeded: {reason}",
        "micromsg": str(Error("too-large", (("reason", reason),))),
        "sabc": reason,
    }.get(name, "")


@pytest.mark.rule(*RULES)
@pytest.mark.parametrize("key", list(FRIENDS))
def test_who_wants_more_than_all_may_have_is_refused_and_the_others_go_on(hub: HubProcess, key: str) -> None:
    counted(hub, lambda found: found == 0)
    with contextlib.ExitStack() as stack:
        friends = [stack.enter_context(contextlib.closing(friend(hub, key))) for _ in range(3)]
        messages = [octets(each, key, 400 * KIB) for each in friends]
        for number in (0, 1):
            friends[number].line.socket.sendall(messages[number][:-1])
            least = (number + 1) * 400 * KIB
            counted(hub, lambda found, least=least: found >= least)  # type: ignore[misc] # a default is no argument
        with contextlib.suppress(ConnectionError):
            friends[2].line.socket.sendall(messages[2][:-1])
        said = last_words(friends[2])
        assert expected(key, TOTAL) in said
        assert ("error-code::429" in said) == key.startswith("sabc")
        for number in (0, 1):
            friends[number].line.socket.sendall(messages[number][-1:])
            if not key.startswith("umq"):
                friends[number].publish("t", b"y")
            else:
                assert str(friends[number].word()).startswith("R")
        counted(hub, lambda found: found == 0)
    protocol = key.partition("_")[0]
    assert hub.metric(f'polywire_faults_total{{protocol="{protocol}",reason="unfinished-size"}}') >= 1
    hub.wait_for_log("is disconnected: it holds")


def shapes(client: Friend, key: str) -> bytes:
    """More than a client may hold, in another form than one long frame; the message never ends."""
    part = b"x" * (100 * KIB)
    if isinstance(client, SabcFriend):
        lines = ["MESSAGE", f"session-id::{client.session}", "msg-id::9", "destination::t", "msg-more::yes"]
        frame = "\r\n".join(lines).encode() + b"\r\n\r\n" + part
        return masked(0x81, frame) * 7 if key == "sabc_ws" else frame * 7
    if key == "micromsg":
        first = b"\x18\x00\x01" + b"\x07topic/t" + b"\x00\x00" + len(part).to_bytes(4, "big") + part
        return first * 7
    if key == "umq":
        call = masked(0x81, b'A8:C1:["publish","t",null]')
        return call + b"".join(masked(0x82, part) for _ in range(7))
    raise AssertionError(key)


@pytest.mark.rule(*RULES)
@pytest.mark.parametrize("key", list(FRIENDS))
def test_one_client_holds_no_more_than_its_own_part(hub: HubProcess, key: str) -> None:
    with contextlib.closing(friend(hub, key)) as client:
        with contextlib.suppress(ConnectionError):
            client.line.socket.sendall(octets(client, key, 700 * KIB)[:-1])
        assert expected(key, OWN) in last_words(client)


@pytest.mark.rule(*RULES)
@pytest.mark.parametrize("key", ["umq", "micromsg", "sabc", "sabc_ws"])
def test_messages_in_several_frames_count_too(hub: HubProcess, key: str) -> None:
    with contextlib.closing(friend(hub, key)) as client:
        with contextlib.suppress(ConnectionError):
            client.line.socket.sendall(shapes(client, key))
        assert expected(key, OWN) in last_words(client)


@pytest.mark.rule("UMQ-169")
def test_fragments_of_a_websocket_message_count_too(hub: HubProcess) -> None:
    with contextlib.closing(friend(hub, "umq")) as client:
        part = b"x" * (100 * KIB)
        with contextlib.suppress(ConnectionError):
            client.line.socket.sendall(masked(0x01, part) + b"".join(masked(0x00, part) for _ in range(6)))
        assert expected("umq", OWN) in last_words(client)


def test_forty_clients_with_the_largest_messages_leave_the_hub_small() -> None:
    with running_hub() as hub, contextlib.ExitStack() as stack:
        for number in range(40):
            client = friend(hub, ("fmqp", "umq", "sabc", "mqtt")[number % 4])
            stack.callback(client.close)
            data = client.push("t", b"x" * (15 * MIB))
            if isinstance(client.line, WebSocketLine):
                data = masked(0x81, data)
            client.line.socket.settimeout(5)
            with contextlib.suppress(ConnectionError):
                client.line.socket.sendall(data[:-1])
        still = friend(hub, "micromsg")
        still.publish("t", b"y" * 2000)
        still.close()
        assert 15 * MIB < hub.metric("polywire_unfinished_bytes") <= 64 * MIB
        status = Path(f"/proc/{hub.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        assert int(found[1]) * KIB < 400 * MIB


@pytest.mark.rule("UMQ-143")
def test_when_all_queues_are_full_each_protocol_says_so() -> None:
    full = "the hub's queues are full"
    answers = {
        "umq": f"E1:8 Temporarily unavailable: {full}",
        "micromsg": str(Error("forbidden", (("destination", "x"), ("sequence", "1"), ("reason", full)))),
        "mqtt": "hung up",
        "sabc": full,
    }
    with running_hub("limits.queues_size=8 KiB") as hub:
        first = friend(hub, "fmqp")
        for name in ("a", "b", "c"):
            first.publish(f"queue/{name}", b"x" * 3000)
        assert 7000 < hub.metric("polywire_queues_memory") <= 8192
        assert hub.metric('polywire_dropped_total{protocol="fmqp",reason="queues-full"}') == 1
        for key, answer in answers.items():
            client = friend(hub, key)
            for _ in range(2):  # 512 bytes and a small message may still fit
                said = answer_to_publishing(client, "queue/x")
                if said.endswith(answer) or said == "hung up":
                    break
            assert said.endswith(answer), key
            client.close()
        first.close()
        hub.wait_for_log("is refused: queues-full")
