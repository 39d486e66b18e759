"""The attributes that the hub's UMQ clients have set, for those who may read them (UMQ-157, UMQ-158)."""

from typing import cast

from polywire.hub.access import fits_in_a_pattern
from polywire.hub.channels import from_stars
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Attached, FailedAttachment
from polywire.protocols.umq.connection import Attributes
from polywire.protocols.umq.frames import AttachmentError

ATTRIBUTES_OF = "$attributes/"
"""What an access rule calls the attributes of a user's connections: this and the user's name."""

ALL_ATTRIBUTES = from_stars(ATTRIBUTES_OF + "**")
NOT_YET = FailedAttachment("not received yet")


class Owned:
    """One connection and its attributes."""

    def __init__(self, client: Client, attributes: Attributes) -> None:
        self.client = client
        self.attributes = attributes

    def may_be_read_by(self, reader: Client) -> bool:
        """Its own connection, one of the same user, one that a rule allows; without rules, one from this machine."""
        owner = self.client.identity
        if reader is self.client:
            return True
        if owner.how != "anonymous" and owner.name and owner.name == reader.identity.name:
            return reader.identity.how != "anonymous"
        named = fits_in_a_pattern(owner.name)
        return reader.may_signal(ATTRIBUTES_OF + owner.name if named else ALL_ATTRIBUTES)


def book_of(hub: Hub) -> dict[int, Owned]:
    """Every UMQ connection of a hub, by its number."""
    return cast("dict[int, Owned]", hub.shared.setdefault("umq", {}))


def answered_attributes(attributes: Attributes) -> tuple[dict[str, object], tuple[Attached, ...]]:
    """Attributes as an answer has them: each a text, or with the places of its attachments among the answer's."""
    values: dict[str, object] = {}
    sent: list[Attached] = []
    for name, attribute in attributes.items():
        if not attribute.attachments:
            values[name] = attribute.value
            continue
        places = list(range(len(sent), len(sent) + len(attribute.attachments)))
        values[name] = {"value": attribute.value, "attachments": places}
        for each in attribute.attachments:
            if isinstance(each, bytes):
                sent.append(each)
            else:
                sent.append(FailedAttachment(each.message) if isinstance(each, AttachmentError) else NOT_YET)
    return values, tuple(sent)
