"""What the tests of MQTT share: bytes written as the standard prints them, and the error a stream ends with."""

import pytest

from polywire.protocols.mqtt import Connect, Decoder, RemoteProtocolError, encode
from polywire.protocols.mqtt.frames import Reader
from polywire.wire.frame import Frame


def octets(text: str) -> bytes:
    """Hexadecimal digits, and words in quotes: ``10 0A 'MQTT' 04``."""
    parts = text.split("'")
    return b"".join(part.encode() if index % 2 else bytes.fromhex(part) for index, part in enumerate(parts))


def packet(first: int, body: bytes) -> bytes:
    """A packet with a body of fewer than 128 bytes."""
    assert len(body) < 128
    return bytes((first, len(body))) + body


def connect(flags: int, payload: bytes = b"\0\2me", *, name: bytes = b"\0\4MQTT", level: int = 4) -> bytes:
    """A CONNECT with keep alive 60, right or wrong."""
    return packet(0x10, name + bytes((level, flags, 0, 60)) + payload)


def decoded(data: bytes, role: Reader = "both") -> list[Frame]:
    """All packets of a stream."""
    return Decoder(role=role).feed(data)


def connected(role: Reader = "server", **limits: int) -> Decoder:
    """A decoder that has seen its first packet."""
    decoder = Decoder(role=role, **limits)
    decoder.feed(encode(Connect("me")) if role == "server" else b"\x20\x02\0\0")
    return decoder


def violation(data: bytes, role: Reader = "both", decoder: Decoder | None = None) -> RemoteProtocolError:
    """The error that feeding these bytes raises."""
    with pytest.raises(RemoteProtocolError) as caught:
        (decoder or Decoder(role=role)).feed(data)
    return caught.value
