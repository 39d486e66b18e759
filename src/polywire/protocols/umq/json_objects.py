"""The JSON objects in the hub's payloads, as msgspec reads them.

This module is never compiled: msgspec makes its classes itself, and mypyc would take their options from it.
"""

from typing import TypeAlias

import msgspec

Header: TypeAlias = str | int | float


class SubscribeOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The last argument of ``subscribe`` (UMQ-128)."""

    envelope: bool = False


class PublishOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The last argument of ``publish`` (UMQ-125)."""

    headers: dict[str, Header] = {}
    content_type: str | None = None
    retain: bool = False


class CallOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The last argument of ``call`` (UMQ-126)."""

    timeout: int | None = None
    headers: dict[str, Header] = {}
    stream: int | str | None = None


class EnvelopeObject(msgspec.Struct):
    """An enveloped update (UMQ-128)."""

    channel: str
    headers: dict[str, Header]
    body: msgspec.Raw
    ts: int
