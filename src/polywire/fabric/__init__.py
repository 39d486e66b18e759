"""Several hubs that act as one: membership, links between them, and what they share."""

from polywire.fabric.calls import Calls
from polywire.fabric.fabric import Fabric, Settings
from polywire.fabric.membership import Membership
from polywire.fabric.replicas import Presence, Retention, Shares
from polywire.fabric.resend import Archive, DiskArchive
from polywire.hub.hub import Hub

__all__ = ["Archive", "DiskArchive", "Fabric", "Membership", "Settings", "make_fabric"]


def make_fabric(
    hub: Hub, membership: Membership, settings: Settings | None = None, archive: Archive | None = None
) -> Fabric:
    """A hub's part in a fabric, with all that nodes share. ``Fabric.start`` joins the other nodes.

    ``archive`` is the hub's journal, a ``DiskArchive`` as a rule, or None where it has none.
    """
    fabric = Fabric(hub, membership, settings, archive)
    Retention(fabric)
    Presence(fabric)
    Shares(fabric)
    Calls(fabric)
    return fabric
