"""Where a destination leads in the hub: the channel of a topic or queue, or the ERROR that says why nowhere.

``topic/<path>`` is the topic of that path, in a subscription perhaps a pattern. Anything else is a queue, under its
name; other protocols write ``queue/<name>`` for it, and that is understood here too.
"""

from typing import Final

from polywire.hub.channels import from_stars, name_problem
from polywire.hub.hub import QUEUE_PREFIX
from polywire.protocols.micromsg.errors import NO_SUCH_DESTINATION
from polywire.protocols.micromsg.filters import is_usable, topic_path
from polywire.protocols.micromsg.frames import Error

MAX_DESTINATION: Final = 255


def of_message(destination: str) -> str | Error:
    """The channel a SEND goes to."""
    channel = _channel(destination)
    if isinstance(channel, str) and not channel.startswith(QUEUE_PREFIX) and from_stars(channel) != channel:
        return _nowhere(destination, "a pattern can be subscribed to, not sent to")
    return channel


def of_subscription(destination: str) -> str | Error:
    """MICROMSG-136: the channel to subscribe to, or the pattern behind ``topic/``."""
    if len(destination.encode("utf-8", "replace")) > MAX_DESTINATION:
        return _nowhere(destination[:MAX_DESTINATION], f"a destination has at most {MAX_DESTINATION} bytes")
    channel = _channel(destination)
    if isinstance(channel, Error) or channel.startswith(QUEUE_PREFIX):
        return channel
    if "**" in channel.split("/")[:-1]:
        return _nowhere(destination, "** stands at the end of a pattern only")
    return from_stars(channel)


def _channel(destination: str) -> str | Error:
    if not is_usable(destination):
        return _nowhere(destination, "")
    channel = topic_path(destination)
    if channel is not None:
        if channel.startswith(QUEUE_PREFIX):
            return _nowhere(destination, "this is a queue's name, write it without topic/")
    else:
        channel = QUEUE_PREFIX + destination.removeprefix(QUEUE_PREFIX)
        if channel == QUEUE_PREFIX:
            return _nowhere(destination, "the queue has no name")
    problem = name_problem(channel)
    return channel if problem is None else _nowhere(destination, problem)


def _nowhere(destination: str, reason: str) -> Error:
    named = (("destination", destination),)
    return Error(NO_SUCH_DESTINATION, (*named, ("reason", reason)) if reason else named)
