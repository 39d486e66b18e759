"""A hub's part in a cluster, made from ``[fabric]``: its membership, its links and its queues."""

import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from polywire.fabric import DiskArchive, Settings, make_fabric
from polywire.fabric.membership import Log, Membership, MembershipError
from polywire.fabric.queues import Queues, QueueSettings, share_queues
from polywire.hub.hub import Hub
from polywire.server.config import ConfigError, Problem
from polywire.server.config.schema import Fabric as FabricConfig

if TYPE_CHECKING:
    from polywire.fabric.nats import NatsMembership, NatsSettings

OpenLog = Callable[[int, Callable[[str], None]], Log]
"""Opens the log of a shard; the last parameter is called when it is lost."""

SETTLE_SECONDS: Final = 10.0
"""How long a node that leaves waits for others to confirm what its clients have put into their queues."""

log = logging.getLogger("polywire.fabric")


@final
class Node:
    """A hub as a node of a cluster. Its journal, if it has one, is restored before this is made."""

    def __init__(
        self, config: FabricConfig, hub: Hub, membership: Membership, queues: QueueSettings, journal: Path | None
    ) -> None:
        self._config: Final = config
        self._membership: Final = membership
        settings = Settings(window=config.window, buffer=config.buffer)
        self._fabric: Final = make_fabric(hub, membership, settings, None if journal is None else DiskArchive(journal))
        self._queues: Final[Queues] = share_queues(self._fabric, queues)

    async def start(self) -> None:
        """Join the cluster; a ``ConfigError`` says why that is not possible."""
        try:
            self._queues.introducing = True
            await self._fabric.start()
            await self._fabric.introduced()
            self._queues.introduced()
        except MembershipError as error:
            raise ConfigError([Problem(str(error), "fabric")]) from error
        log.info("node %s of a cluster", self._membership.node)
        await self._check_servers()

    async def stop(self) -> None:
        """Hand over what this node owns, and leave."""
        await self._membership.hand_over()
        if not await self._queues.settled(SETTLE_SECONDS):
            log.warning("left while other nodes had not confirmed all that clients of this one put into their queues")
        elif self._queues.is_empty_handed():
            await self._membership.retire()
        await self._queues.stop()
        await self._fabric.stop()

    def status(self) -> dict[str, object]:
        """What ``/v1/cluster`` shows of it."""
        return {**self._fabric.status(), "shards": self._queues.status()}

    async def _check_servers(self) -> None:
        """Warn where what is acknowledged may be lost when the power fails."""
        if self._config.kind != "nats" or self._config.replicas == 1:
            return
        if not self._config.monitor:
            log.info("fabric.monitor is not set, so it is not known whether the servers of NATS sync what they store")
        for reason in await self._membership.unsynced():
            log.warning(
                "%s: acknowledged messages of queues may be lost when the power of several servers fails", reason
            )


def nats_node(config: FabricConfig, hub: Hub, name: str, about: Mapping[str, str], journal: Path | None) -> Node:
    """A node of a cluster on NATS."""
    from polywire.fabric.nats import NatsMembership  # noqa: PLC0415 - needs nats-py, which is an extra

    try:
        membership = NatsMembership(nats_settings(config, name, about))
    except MembershipError as error:
        raise ConfigError([Problem(str(error), "fabric.node")]) from error
    open_log = None if config.replicas == 1 else partial(_open_log, config, membership)
    return Node(config, hub, membership, queue_settings(config, open_log), journal)


def worker_node(config: FabricConfig, hub: Hub, membership: Membership, journal: Path | None) -> Node:
    """One of several workers on this machine."""
    return Node(config, hub, membership, queue_settings(config, None), journal)


def nats_settings(config: FabricConfig, node: str, about: Mapping[str, str]) -> "NatsSettings":
    """How to join the cluster."""
    from polywire.fabric.nats import NatsSettings  # noqa: PLC0415 - as above

    return NatsSettings(
        config.cluster,
        node,
        config.url,
        credentials=config.credentials,
        tls=_context(config),
        lease=config.lease,
        lost_shards_wait=config.replicas == 1,
        about=about,
        monitors=config.monitor,
    )


def queue_settings(config: FabricConfig, open_log: OpenLog | None) -> QueueSettings:
    """How queues are shared."""
    return QueueSettings(open_log, refuse=config.on_lost == "refuse", buffer=max(config.buffer, 1 << 20))


def _open_log(config: FabricConfig, membership: "NatsMembership", shard: int, lost: Callable[[str], None]) -> Log:
    from polywire.fabric.log import ShardLog  # noqa: PLC0415 - as above

    return ShardLog(
        membership.jetstream,
        f"polywire_{config.cluster}_{shard}",
        f"polywire.{config.cluster}.log.{shard}",
        node=membership.node,
        replicas=config.replicas,
        lost=lost,
    )


def _context(config: FabricConfig) -> ssl.SSLContext | None:
    """What this node trusts, and its certificate; None without TLS."""
    if config.ca is None and config.certificate is None and not any(url.startswith("tls:") for url in config.url):
        return None
    try:
        context = ssl.create_default_context(cafile=config.ca)
    except (OSError, ValueError) as error:
        raise ConfigError([Problem(f"{config.ca} is no file of certificates: {error}", "fabric.ca")]) from error
    if config.certificate is not None:
        try:
            context.load_cert_chain(config.certificate, config.key, password=lambda: b"")
        except (OSError, ValueError) as error:
            words = f"{config.certificate} and its key can't be used: {error}"
            raise ConfigError([Problem(words, "fabric.certificate")]) from error
    return context
