"""The protocol's page shows what the codec does."""

import re
from pathlib import Path

from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    encode,
)
from polywire.protocols.mqtt.frames import MAX_FILTERS, MAX_PACKET_BEFORE_CONNECT
from polywire.wire.frame import Frame

PAGE = (Path(__file__).parents[3] / "docs" / "protocols" / "mqtt.md").read_text(encoding="utf-8")
LINE = re.compile(r"^([<>]) ((?:[0-9A-F]{2} )+) +[A-Z]+", re.MULTILINE)


def test_the_transcript_is_what_it_says() -> None:
    said: list[tuple[str, Frame]] = [
        (">", Connect("me", clean_session=True, keep_alive=60)),
        ("<", Connack(session_present=False, return_code=0)),
        (">", Subscribe(10, (("a/+", 1),))),
        ("<", Suback(10, (1,))),
        (">", Publish("a/b", b"hi", 1, packet_id=11)),
        ("<", Publish("a/b", b"hi", 1, packet_id=1)),
        ("<", Puback(11)),
        (">", Puback(1)),
        (">", Disconnect()),
    ]
    readers = {">": Decoder(role="server"), "<": Decoder(role="client")}
    lines = [(side, bytes.fromhex(text)) for side, text in LINE.findall(PAGE)]
    assert [(side, frame) for side, data in lines for frame in readers[side].feed(data)] == said
    assert [data for _, data in lines] == [encode(frame) for _, frame in said]


def test_the_limits_are_what_it_says() -> None:
    for number in (MAX_PACKET_BEFORE_CONNECT, MAX_FILTERS, 65535):
        assert f"{number:,}".replace(",", " ") in PAGE
