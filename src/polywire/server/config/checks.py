"""What single values can't show: keys that contradict each other, and files that are missing or unusable."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Final, Protocol

from polywire.fabric.membership import CLUSTER_NAME, NODE_NAME
from polywire.hub.channels import from_stars, name_problem
from polywire.hub.queues import Policy
from polywire.server.address import WILDCARDS, Address
from polywire.server.config.kinds import File
from polywire.server.config.schema import Auth, Config, Fabric, Section, Table, root
from polywire.server.config.text import ConfigError, Origin, Problem


class OriginOf(Protocol):
    """Where the value of a key comes from."""

    def __call__(self, *path: str | int) -> Origin:
        """Its place, by the parts of its name."""


def find_problems(config: Config, origin: OriginOf, *, insecure: bool = False) -> list[Problem]:
    """Everything that keeps the hub from starting with this configuration, or would make it useless or unsafe.

    ``insecure``: whether listening beyond loopback without ``[auth]`` is wanted.
    """

    def at(reason: str, *path: str | int) -> Problem:
        names = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        return Problem(reason, names.removeprefix("."), origin(*path))

    problems = [*_listeners(config, at), *_tls(config, at)]
    if config.auth is not None:
        problems += _auth(config, config.auth, at)
    elif not insecure:
        problems += _exposed(config, at)
    problems += _access(config, at)
    problems += _queues(config, at)
    problems += _fabric(config.fabric, at)
    problems += _files(config, root(), at)
    problems += _paths(config, at)
    # What is missing, or wrong with [auth.jwt], has been said; what can't be loaded because of it need not be.
    known = {problem.key for problem in problems}
    for problem in _contents(config):
        if problem.key not in known and not (problem.key.startswith("auth.jwt.") and known & JWT_KEYS):
            problems.append(replace(problem, origin=origin(*problem.key.split("."))))
    return problems


JWT_KEYS: Final = {"auth.jwt", "auth.jwt.algorithms"}


At = Callable[..., Problem]


def _listeners(config: Config, at: At) -> Iterator[Problem]:
    addresses = config.listen.addresses()
    if not addresses:
        yield at("every listener is off; leave at least one on", "listen")
    for (first, one), (second, other) in combinations(addresses.items(), 2):
        if one.scheme == "unix" or other.scheme == "unix":
            if one == other:
                yield at(f"{other} is also the address of listen.{first}; give each its own", "listen", second)
        elif one.websocket and other.websocket and (one.host, one.port) == (other.host, other.port):
            if one.scheme != other.scheme:
                yield at(f"shares its port with listen.{first} ({one}): both ws or both wss", "listen", second)
            elif one.path == other.path:
                yield at(f"{other} is also the address of listen.{first}; give each its own path", "listen", second)
        elif one.port and one.port == other.port and _hosts_meet(one, other):
            yield at(f"{other} uses the port of listen.{first} ({one}); give each its own port", "listen", second)


def _hosts_meet(one: Address, other: Address) -> bool:
    """Whether both can't listen on one port. A wildcard takes the port on every address."""
    hosts = {"127.0.0.1" if host == "localhost" else host for host in (one.host, other.host)}
    return len(hosts) == 1 or not hosts.isdisjoint(WILDCARDS)


def _tls(config: Config, at: At) -> Iterator[Problem]:
    tls = config.tls
    for name, address in config.listen.addresses().items():
        if address.encrypted and tls is None:
            yield at(f"{address} needs a certificate: write [tls] with certificate and key", "listen", name)
    if tls is not None and tls.require_client_certificate and tls.client_ca is None:
        reason = "client certificates can't be checked without client_ca"
        yield at(reason, "tls", "require_client_certificate")


def _exposed(config: Config, at: At) -> Iterator[Problem]:
    for name, address in config.listen.addresses().items():
        if not address.local:
            yield at(
                f"{address} can be reached from other machines and no login is required: "
                "write [auth], listen on 127.0.0.1, or start with --insecure",
                "listen",
                name,
            )


def _fabric(fabric: Fabric, at: At) -> Iterator[Problem]:
    if fabric.kind == "nats" and not fabric.url:
        yield at("set fabric.url to the URL of a server of NATS, such as nats://127.0.0.1:4222", "fabric", "kind")
    if not CLUSTER_NAME.fullmatch(fabric.cluster):
        yield at(f"{fabric.cluster!r} is part of names in NATS: use letters, digits, - and _", "fabric", "cluster")
    if fabric.node is not None and not NODE_NAME.fullmatch(fabric.node):
        yield at(
            f"{fabric.node!r} is part of names in NATS: use letters, digits, -, _ and single dots", "fabric", "node"
        )
    if fabric.key is not None and fabric.certificate is None:
        yield at("a key needs its certificate: set certificate too", "fabric", "key")


def _auth(config: Config, auth: Auth, at: At) -> Iterator[Problem]:
    ways = (auth.users, auth.jwt, auth.certificate or None, auth.anonymous or None, auth.listeners.users() or None)
    if not any(way is not None for way in ways):
        yield at("nobody can log in: set users, jwt, certificate, listeners or anonymous", "auth")
    if auth.certificate and (config.tls is None or config.tls.client_ca is None):
        yield at("client certificates can't be checked without tls.client_ca", "auth", "certificate")
    jwt = auth.jwt
    if jwt is None:
        return
    if (jwt.key is None) == (jwt.jwks is None):
        yield at("give exactly one of key and jwks", "auth", "jwt")
    kinds = {algorithm[:2] for algorithm in jwt.algorithms}
    if jwt.key is not None and len(kinds) > 1:
        # With HS and RS together the public key would be accepted as the secret, and anyone could sign.
        reason = f"one key can't be used for {' and '.join(sorted(kinds))}; name algorithms of one kind, or use jwks"
        yield at(reason, "auth", "jwt", "algorithms")
    elif jwt.jwks is not None and "HS" in kinds and len(kinds) > 1:
        reason = (
            "HS algorithms with a public key would let anyone who has that key sign tokens; name algorithms of one kind"
        )
        yield at(reason, "auth", "jwt", "algorithms")


def _access(config: Config, at: At) -> Iterator[Problem]:
    for index, rule in enumerate(config.access):
        if rule.user is not None and rule.group is not None:
            yield at("is for a user or for a group, not both; write two rules", "access", index)
        elif config.auth is None and (rule.user is not None or rule.group is not None):
            yield at("names a user or group, but without [auth] clients have no name", "access", index)
        elif rule.user is None and rule.group is None and config.auth is None and "{user}" in "".join(rule.channels):
            yield at("holds {user}, but without [auth] clients have no name", "access", index, "channels")


def _queues(config: Config, at: At) -> Iterator[Problem]:
    for index, policy in enumerate(config.queues):
        name = policy.dead_letter
        if (policy.max_deliveries == 0) != (name is None):
            missing = "max_deliveries" if policy.max_deliveries == 0 else "dead_letter"
            yield at(f"max_deliveries and dead_letter need each other; {missing} is missing", "queues", index)
        elif name is not None and (problem := name_problem(name)):
            yield at(problem, "queues", index, "dead_letter")
        elif name is not None and (loop := _loop(config, name)):
            words = f"dead letters would move in a circle: {' to '.join(loop)}; choose another dead_letter queue"
            yield at(words, "queues", index, "dead_letter")


def _loop(config: Config, queue: str) -> list[str]:
    """The circle in which a dead letter would move, or nothing if there is none."""
    policies = queue_policies(config)
    way = [queue]
    while True:
        found = next((policy for policy in policies if policy.covers(way[-1])), None)
        if found is None or not found.dead_letter:
            return []
        way.append(found.dead_letter)
        if way.count(found.dead_letter) > 1:
            return way


def queue_policies(config: Config) -> tuple[Policy, ...]:
    """The policies of queues, as the hub has them."""
    return tuple(
        Policy(tuple(map(from_stars, each.names)), each.max_deliveries, each.dead_letter or "")
        for each in config.queues
    )


def _files(struct: Section, table: Table, at: At) -> Iterator[Problem]:
    for name, key in table.keys.items():
        path = getattr(struct, name)
        if isinstance(key.kind, File) and key.kind.exists and path is not None:
            reason = _file_problem(path)
            if reason is not None:
                yield at(f"{path}: {reason}", *table.path, name)
    for name, inner in table.tables.items():
        value = getattr(struct, name)
        if value is not None and not inner.many:
            yield from _files(value, inner, at)


def _contents(config: Config) -> Iterator[Problem]:
    """Files that are there, but that the hub can't use: everything is loaded once, as the start does."""
    from polywire.server.config.admission import make_authenticator, make_context  # noqa: PLC0415 - slow to import

    try:
        if config.tls is not None:
            make_context(config.tls)
    except ConfigError as error:
        yield from error.problems
    try:
        if config.auth is not None:
            make_authenticator(config.auth)
    except ConfigError as error:
        yield from error.problems


def _paths(config: Config, at: At) -> Iterator[Problem]:
    """Places the hub writes to: the directories of Unix sockets, and the journal's."""
    for name, address in config.listen.addresses().items():
        folder = Path(address.path).parent
        if address.scheme == "unix" and not folder.exists():
            yield at(f"{address}: there is no directory {folder}; create it first", "listen", name)
        elif address.scheme == "unix" and (reason := _unwritable(folder)):
            yield at(f"{address}: no socket can be created in {folder}: {reason}", "listen", name)
    if config.journal.enabled:
        place = config.journal.path
        while not place.exists() and place != place.parent:
            place = place.parent
        if reason := _unwritable(place):
            words = (
                f"can't open the journal: {config.journal.path}: {reason}; use a directory that the hub can write to"
            )
            yield at(words, "journal", "path")


def _unwritable(folder: Path) -> str:
    """Why no file can be made in a directory; empty where one can."""
    if not folder.is_dir():
        return os.strerror(errno.ENOTDIR)
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return os.strerror(errno.EROFS)
    return "" if os.access(folder, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)


def _file_problem(path: Path) -> str | None:
    if not path.exists():
        return "there is no such file"
    if not path.is_file():
        return "this is not a file"
    return None if os.access(path, os.R_OK) else "this file can't be read"
