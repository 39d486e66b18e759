"""What a body may contain on the wire, and base64 for what it may not.

A body stands between the empty line of the headers and the null portion, so a NUL in the wrong place would end it
early; and the specification wants UTF-8. Bodies that don't fit go as base64 (SABC-82).
"""

from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from typing import Final

TERMINATOR = b"\r\n\r\n\0"
"""SABC-10: the null portion."""

NUL: Final = 0
CR: Final = 13


def unfit(body: bytes, session_id: str | None) -> tuple[str, str] | None:
    """Why a body can't stand on the wire as it is, as (rule, reason), or None where it can."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            return ("SABC-82", f"the body is not UTF-8 at its octet {error.start}")
    if NUL in body:
        if body.startswith((b"\0", b"\r\n\0")):
            return ("SABC-82", "the body begins with NUL or CR LF NUL, which would end it")
        if TERMINATOR in body:
            return ("SABC-82", "the body contains CR LF CR LF NUL, which would end it")
    if session_id is not None and CR in body and boundary_mark(session_id) in body:
        return ("SABC-126", "the body contains what begins a frame of its own session")
    return None


def boundary_mark(session_id: str) -> bytes:
    """What follows the command at the start of every frame of a session (SABC-77), but for the end of its line."""
    return b"\r\nsession-id::" + session_id.encode(errors="replace")


def to_base64(body: bytes) -> bytes:
    """The body as base64 text."""
    return b64encode(body)


def from_base64(text: bytes, *, truncated: bool = False) -> bytes | None:
    """The octets base64 text stands for, or None where it is none.

    Frames of one message may have been encoded each on its own, so padding may stand inside (SABC-125). Of a truncated
    text the last, incomplete group of four is dropped.
    """
    if truncated:
        text = text[: len(text) // 4 * 4]
    out = bytearray()
    start = 0
    while start < len(text):
        padding = text.find(b"=", start)
        stop = len(text) if padding < 0 else (padding // 4 + 1) * 4
        if stop - start != (stop - start) // 4 * 4:
            return None
        try:
            out += a2b_base64(text[start:stop], strict_mode=True)
        except Base64Error:
            return None
        start = stop
    return bytes(out)
