"""Several hubs that act as one: membership, links between them, and what they share."""

from typing import TYPE_CHECKING

from polywire.process import exports

if TYPE_CHECKING:
    from polywire.fabric.fabric import Fabric, Settings
    from polywire.fabric.membership import Membership
    from polywire.fabric.replicas import make_fabric
    from polywire.fabric.resend import Archive, DiskArchive
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "fabric": "Fabric Settings",
            "membership": "Membership",
            "replicas": "make_fabric",
            "resend": "Archive DiskArchive",
        },
    )

__all__ = ["Archive", "DiskArchive", "Fabric", "Membership", "Settings", "make_fabric"]
