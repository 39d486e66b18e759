"""What a row of the journal can be: its kinds and the bits of its flags.

Plain numbers and names, without Arrow, so that the hub's hot modules can use them. A kind's place in its list is its
code in the file: the list only ever grows at the end.
"""

from typing import Final

KINDS: Final = (
    "publish",
    "enqueue",
    "ack",
    "request",
    "reply",
    "error",
    "connect",
    "disconnect",
    "subscribe",
    "unsubscribe",
    "retain",
    "discard",
    "session",
    "deliver",
    "sent",
    "received",
    "hold",
    "release",
    "gap",
    "will",
    "nack",
)

EARLIER_KINDS: Final = (20, 19)
"""How many kinds there were when segments were written that may still be around."""

PUBLISH: Final = 0
ENQUEUE: Final = 1
ACK: Final = 2
REQUEST: Final = 3
REPLY: Final = 4
ERROR: Final = 5
CONNECT: Final = 6
DISCONNECT: Final = 7
SUBSCRIBE: Final = 8
UNSUBSCRIBE: Final = 9
RETAIN: Final = 10
DISCARD: Final = 11
SESSION: Final = 12
DELIVER: Final = 13
SENT: Final = 14
RECEIVED: Final = 15
HOLD: Final = 16
RELEASE: Final = 17
GAP: Final = 18
"""Never stored: what a reader shows in place of a batch that can't be read."""
WILL: Final = 19
NACK: Final = 20
"""A queue has a message back: its consumer rejected it, or went away without acknowledging it."""

NO_PROTOCOL: Final = -1
"""In the place of a protocol's code: the row has none, and its column is null."""

RETAIN_FLAG: Final = 1
"""The message is to be retained."""
QOS_SHIFT: Final = 1
QOS_MASK: Final = 6
"""MQTT's quality of service, two bits: ``qos << QOS_SHIFT``."""
PERSISTENT_FLAG: Final = 8
"""It belongs to an MQTT session that is kept."""
LAST_FLAG: Final = 16
"""The last request or reply of a call."""
UNHEARD_FLAG: Final = 32
"""Published without any subscriber."""
WILL_FLAG: Final = 64
"""A last will."""
CLEAN_FLAG: Final = 128
"""A session begins again, or ends for good; in a row of kind ``will``: the connection's last wills are over."""
QUEUED_FLAG: Final = 256
"""A delivery or acknowledgement that belongs to a queue."""
PATTERN_FLAG: Final = 512
"""The message was published to a pattern: ``*`` in its channel matches any one level."""
BINARY_FLAG: Final = 1024
"""The sender marked the body as binary, though it may be UTF-8."""
REPLICATED_FLAG: Final = 2048
"""The message's queue is kept in the cluster's log: this row only tells of it, and is no part of the hub's state."""
