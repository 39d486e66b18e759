"""Why the hub refuses what a client asks for. Each protocol turns these reasons into answers of its own."""

from enum import Enum


class Refused(Enum):
    """One reason. ``label`` names it in metrics, log lines and the journal; ``message`` is for people.

    ``temporary``: the same request may succeed later, without any change to it or to the hub's configuration.
    """

    FORBIDDEN = ("forbidden", "the access rules don't allow it")
    SERVICE_CHANNEL = ("service-channel", "channels under '$' are the hub's own")
    UNSUPPORTED = ("unsupported", "nothing can be published there")
    TOO_DEEP = ("too-deep", "the channel has too many levels")
    LIMIT = ("limit", "you have too many subscriptions, services or calls")
    PATTERN_COST = (
        "pattern-cost",
        "your patterns overlap too much; use fewer patterns, or fewer levels and wildcards in each",
    )
    NAMES_SIZE = (
        "names-size",
        "the memory limit for names is reached; use fewer or shorter names",
    )
    WATCHERS = ("watchers", "the limit on watchers of demand is reached")
    WILLS_SIZE = ("wills-size", "the limit on last wills is reached")
    RETAINED_FULL = ("retained-full", "the limit on retained messages is reached")
    TOO_MANY_QUEUES = ("too-many-queues", "the limit on queues is reached", True)
    QUEUE_FULL = ("queue-full", "the queue is full", True)
    QUEUES_FULL = ("queues-full", "the hub's queues are full", True)
    DRAINING = ("draining", "the hub is shutting down", True)
    UNAVAILABLE = ("journal-unavailable", "the journal can't be written at the moment; try again later", True)

    def __init__(self, label: str, message: str, temporary: bool = False) -> None:
        self.label = label
        self.message = message
        self.temporary = temporary
