"""MQTT under the fuzzer: the stream contract for each role, the scanner against the decoder, matching, and flows."""

from fuzz.contract import Outcome, check_stream, decode, summary
from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Receiver,
    RemoteProtocolError,
    Sender,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
    matches,
)
from polywire.protocols.mqtt.frames import Reader
from polywire.protocols.mqtt.topics import filter_problem, name_problem, plain_name
from polywire.wire.frame import Frame, Run

LIMIT = 600
BEFORE = 200
FILTERS = 8
ROLES: tuple[Reader, ...] = ("server", "client", "both")


def decoder(role: Reader) -> Decoder:
    return Decoder(max_packet=LIMIT, max_packet_before_connect=BEFORE, max_filters=FILTERS, role=role)


def scanned(role: Reader, chunks: list[bytes]) -> Outcome:
    """What the scanner makes of the stream, with its runs taken apart again."""
    routes: dict[bytes, object] = {}
    scanning = decoder(role)
    items: list[Frame | Run] = []
    error = None
    for chunk in chunks:
        try:
            items += scanning.feed_runs(chunk, routes, lambda topic: routes.setdefault(topic, topic[:2]))
        except RemoteProtocolError as wrong:
            items += wrong.frames  # type: ignore[arg-type] # what feed_runs puts there
            error = summary(wrong)
            break
        assert scanning.pending() <= LIMIT
    frames: list[Frame] = []
    for item in items:
        if isinstance(item, Run):
            inside = decoder("both").feed(item.octets())
            assert len(inside) == item.count
            assert all(isinstance(frame, Publish) and frame.topic.encode()[:2] == item.route for frame in inside)
            frames += inside
        else:
            frames.append(item)
    return Outcome(frames, error)


def check_topics(data: bytes) -> None:
    """Quick and thorough checks agree, and matching takes whatever is valid."""
    name, _, topic_filter = data.partition(b"\n")
    if plain_name(name, 0, len(name)):
        assert name_problem(name) is None
    if name_problem(name) is None and filter_problem(topic_filter) is None:
        matches(topic_filter.decode(), name.decode())
        assert matches(name.decode(), name.decode())


def check_flows(frames: list[Frame]) -> None:
    """Any order of acknowledgements leaves the flows consistent."""
    sender, receiver = Sender(max_in_flight=20), Receiver(max_held=4)
    for qos in (1, 2) * 5:
        sender.publish("a", b"", qos)
    try:
        for frame in frames:
            match frame:
                case Puback() | Pubrec() | Pubcomp() | Suback() | Unsuback():
                    sender.acknowledged(frame)
                case Publish():
                    receiver.published(frame)
                case Pubrel():
                    receiver.released(frame)
                case _:
                    pass
            assert len(sender.resume()) == sender.in_flight()
            assert len(receiver.held()) <= 4
    except RemoteProtocolError as error:
        assert error.rule in {"MQTT-183", "MQTT-186"}


def run(data: bytes) -> None:
    """The first byte says where to cut and who reads, the rest is the stream."""
    stream = data[1:]
    cut = data[0] if data else 0
    role = ROLES[cut % 3]
    whole = check_stream(lambda: decoder(role), stream, [cut, 2 * cut + 1], held=LIMIT)
    for frame in whole.frames:
        assert decode(decoder("both"), [encode(frame)], held=LIMIT) == Outcome([frame], None), frame
    assert scanned(role, [stream]) == whole
    assert scanned(role, [stream[:cut], stream[cut:]]) == whole
    check_topics(stream)
    check_flows(whole.frames)


def client_frames() -> list[Frame]:
    return [
        Connect(
            "me",
            clean_session=False,
            keep_alive=60,
            will=Will("will/me", b"gone", 1, retain=True),
            user_name="user",
            password=b"secret",
        ),
        Publish("home/room/temperature", b"21.5"),
        Publish("home/room/temperature", b"21.6"),
        Publish("home/room/humidity", b"x" * 200),
        Publish("home/room/door", b"open", 2, retain=True, dup=True, packet_id=7),
        Puback(1),
        Pubrec(2),
        Pubrel(7),
        Pubcomp(2),
        Subscribe(9, (("home/+/temperature", 1), ("#", 2))),
        Unsubscribe(10, ("home/+/temperature", "$SYS/#")),
        Pingreq(),
        Disconnect(),
    ]


def server_frames() -> list[Frame]:
    return [
        Connack(session_present=True, return_code=0),
        Publish("home/room/temperature", b"21.5"),
        Publish("home/room/temperature", b"21.6", 1, retain=False, dup=False, packet_id=1),
        Suback(9, (1, 128)),
        Unsuback(10),
        Pingresp(),
    ]


def seeds() -> list[bytes]:
    client = b"".join(map(encode, client_frames()))
    server = b"".join(map(encode, server_frames()))
    seeds = [b"\x09" + client, b"\x0a" + server, b"\x0b" + server + client, b"\x0ahome/a\nhome/+/#"]
    return seeds + [b"\x0b" + encode(frame) * 2 for frame in client_frames() + server_frames()]
