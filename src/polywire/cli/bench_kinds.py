"""What ``polywire bench`` can measure; apart from how, so that its help loads no client."""

from enum import StrEnum


class What(StrEnum):
    """What can be measured."""

    pubsub = "pubsub"
    publish = "publish"
    call = "call"
