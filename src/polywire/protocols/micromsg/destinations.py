"""What a destination stands for: ``topic/<path>`` is a topic, anything else a queue."""

from dataclasses import dataclass

TOPIC_PREFIX = "topic/"
SERVICE_LEVEL = "$"


@dataclass(frozen=True, slots=True)
class Topic:
    """The topic ``path``: to all its subscribers. In a subscription it may be a pattern."""

    path: str


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue ``name``: in order, to one receiver."""

    name: str


def read(destination: str) -> Topic | Queue | None:
    """MICROMSG-138: what a destination stands for. None where nothing can be there: no name, or a name under ``$``."""
    if destination.startswith(TOPIC_PREFIX):
        path = destination.removeprefix(TOPIC_PREFIX)
        return None if not path or _is_service(path) else Topic(path)
    return None if not destination or _is_service(destination) else Queue(destination)


def write(channel: Topic | Queue) -> str:
    """The destination of a topic or queue."""
    return TOPIC_PREFIX + channel.path if isinstance(channel, Topic) else channel.name


def covers(subscribed: str, destination: str) -> bool:
    """Whether who subscribed to one destination, perhaps a pattern, gets the messages to another (MICROMSG-136)."""
    if subscribed == destination:
        return True
    if not (subscribed.startswith(TOPIC_PREFIX) and destination.startswith(TOPIC_PREFIX)):
        return False
    pattern, levels = subscribed.split("/"), destination.split("/")
    if pattern[-1] == "**":
        pattern.pop()
        if len(levels) < len(pattern):
            return False
        levels = levels[: len(pattern)]
    return len(pattern) == len(levels) and all(one in {"*", other} for one, other in zip(pattern, levels, strict=True))


def _is_service(name: str) -> bool:
    return name == SERVICE_LEVEL or name.startswith("$/")
