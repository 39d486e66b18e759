"""Several hubs that act as one: membership, links between them, and what they share."""

from polywire.fabric.calls import Calls
from polywire.fabric.fabric import Fabric, Settings
from polywire.fabric.membership import Membership
from polywire.fabric.replicas import Presence, Retention, Shares
from polywire.hub.hub import Hub

__all__ = ["Fabric", "Membership", "Settings", "make_fabric"]


def make_fabric(hub: Hub, membership: Membership, settings: Settings | None = None) -> Fabric:
    """A hub's part in a fabric, with all that nodes share. ``Fabric.start`` joins the other nodes."""
    fabric = Fabric(hub, membership, settings)
    Retention(fabric)
    Presence(fabric)
    Shares(fabric)
    Calls(fabric)
    return fabric
