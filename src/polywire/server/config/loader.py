"""Reading the configuration: the file, what ``--set`` changes in it, and where each value comes from.

Every value is checked, and every problem collected before giving up. ``find_problems`` finds what single values can't
show: keys that contradict each other, and files that are missing or unusable.
"""

import errno
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from polywire.fabric.membership import CLUSTER_NAME, NODE_NAME
from polywire.hub.channels import from_stars, name_problem
from polywire.hub.queues import Policy
from polywire.registry import unusable
from polywire.server.address import WILDCARDS, Address
from polywire.server.config.kinds import File, Listener, as_written
from polywire.server.config.schema import LEAST_LOGIN, Auth, Config, Fabric, Key, Section, Table, nearest, root
from polywire.server.config.text import DEFAULT, ConfigError, KeyPath, Origin, Problem, Written, key_lines


def read_config(written: Written) -> Config:
    """The configuration that was written, or a ``ConfigError`` with all that is wrong with it."""
    reader = _Reader(written.origin_of)
    config = reader.section(written.tree, root(), ())
    if reader.problems:
        raise ConfigError(sorted(reader.problems, key=lambda problem: (problem.origin.kind, problem.origin.line)))
    return _fit(cast("Config", config), written)


def dotted(path: KeyPath) -> str:
    """The path as a person writes it: ``limits.message_size``, ``access[0].user``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = part.isascii() and part.replace("-", "").replace("_", "").isalnum()
            text += ("." if text else "") + (part if bare else as_written(part))
    return text


class _Reader:
    """Reads one tree, and keeps the problems it meets."""

    def __init__(self, origin_of: Callable[[KeyPath], Origin]) -> None:
        self._origin_of = origin_of
        self.problems: list[Problem] = []

    def section(self, value: object, table: Table, path: KeyPath) -> Section | None:
        """The struct of a section, or None where something is wrong with it."""
        if not isinstance(value, dict):
            header = f"[{'.'.join(table.path)}]"
            header = f"[{header}]" if table.many else header
            example = next(iter(table.keys))
            found = as_written(value)
            self._problem(path, f"found {found}, but this is a section: write {header} and {example} = …")
            return None
        before = len(self.problems)
        fields: dict[str, Any] = {}
        for name, inner in value.items():
            below = (*path, name)
            if name in table.keys:
                fields[name] = self._value(inner, table.keys[name], below)
            elif name not in table.tables:
                self._unknown(inner, table, below)
            elif table.tables[name].many:
                fields[name] = self._many(inner, table.tables[name], below)
            else:
                fields[name] = self.section(inner, table.tables[name], below)
        for name, key in table.keys.items():
            if key.required and name not in value:
                self._problem(path, f"{name} is missing; allowed is {key.kind.allowed}")
        return table.struct(**fields) if len(self.problems) == before else None

    def _many(self, value: object, table: Table, path: KeyPath) -> tuple[Section | None, ...]:
        if not isinstance(value, list):
            self._problem(path, f"found {as_written(value)}, but this is a list of tables: write [[{dotted(path)}]]")
            return ()
        return tuple(self.section(item, table, (*path, index)) for index, item in enumerate(value))

    def _value(self, value: object, key: Key, path: KeyPath) -> object:
        folder = self._origin_of(path).folder
        try:
            return key.kind.read(value, folder)
        except ValueError as error:
            found = f"found {as_written(value)}"
            if not str(error):
                self._problem(path, f"{found}, allowed is {key.kind.allowed}")
            elif isinstance(key.kind, Listener):
                self._problem(path, f"{found}: {error}")
            else:
                self._problem(path, f"{found}: {error}; allowed is {key.kind.allowed}")
            return None

    def _unknown(self, value: object, table: Table, path: KeyPath) -> None:
        what = "section" if isinstance(value, dict) or not table.keys else "key"
        names = tuple(str(part) for part in path)
        reason = f"no such {what}; did you mean {nearest(names, table)}?"
        if table.path == ("listen",):
            reason = " ".join([reason, *(f"({each})" for each in unusable())])
        self._problem(path, reason)

    def _problem(self, path: KeyPath, reason: str) -> None:
        self.problems.append(Problem(reason, dotted(path), self._origin_of(path)))


def _fit(config: Config, written: Written) -> Config:
    """The configuration with the defaults that depend on another key."""
    limits = config.limits
    least = {"unfinished_size": 4 * limits.message_size, "unfinished_size_per_client": 5 * limits.message_size // 2}
    for name, size in least.items():
        if ("limits", name) not in written.origins and getattr(limits, name) < size:
            limits = msgspec.structs.replace(limits, **{name: size})
    config = msgspec.structs.replace(config, limits=limits)
    most = max(limits.message_size, LEAST_LOGIN)
    if limits.message_size_before_auth <= most:
        return config
    origin = written.origins.get(("limits", "message_size_before_auth"))
    if origin is not None:
        reason = f"is more than limits.message_size ({limits.message_size}), the limit for all messages"
        raise ConfigError([Problem(reason, "limits.message_size_before_auth", origin)])
    limits = msgspec.structs.replace(limits, message_size_before_auth=most)
    return msgspec.structs.replace(config, limits=limits)


DEFAULT_FILE: Final = Path("polywire.toml")
LARGEST_FILE: Final = 4 * 1024 * 1024
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective value. ``shown`` is the way a person could have written it, ``value`` has plain numbers instead."""

    key: str
    value: object
    shown: object
    origin: Origin


@dataclass(frozen=True, slots=True)
class Loaded:
    """The effective configuration, and what it was made of. ``path`` is the file, None where there is none."""

    config: Config
    path: Path | None = None
    sets: tuple[str, ...] = ()
    written: dict[KeyPath, Origin] = field(default_factory=dict)

    def origin(self, *path: str | int) -> Origin:
        """Where the value of this key comes from: ``origin("limits", "message_size")``."""
        return self.written.get(path, DEFAULT)

    def problems(self, *, insecure: bool = False) -> list[Problem]:
        """What is wrong with the configuration as a whole; the values by themselves have been checked."""
        return find_problems(self.config, self.origin, insecure=insecure)

    def check(self, *, insecure: bool = False) -> None:
        """Raise a ``ConfigError`` where there are problems."""
        problems = self.problems(insecure=insecure)
        if problems:
            raise ConfigError(problems)

    def again(self) -> "Loaded":
        """The same file and ``--set``, read again."""
        return load(self.path, self.sets)

    def settings(self) -> Iterator[Setting]:
        """Every effective value, in the order of the documentation."""
        yield from self._settings(self.config, root(), ())

    def _settings(self, struct: Any, table: Table, path: KeyPath) -> Iterator[Setting]:
        for name, key in table.keys.items():
            below = (*path, name)
            value = getattr(struct, name)
            shown = key.kind.show(value)
            plain = value if isinstance(value, int | float) else shown
            yield Setting(dotted(below), plain, shown, self.origin(*below))
        for name, inner in table.tables.items():
            value = getattr(struct, name)
            if inner.many:
                for index, item in enumerate(value):
                    yield from self._settings(item, inner, (*path, name, index))
            elif value is not None:
                yield from self._settings(value, inner, (*path, name))


def load(path: Path | None = None, sets: Sequence[str] = (), *, sections: Collection[str] | None = None) -> Loaded:
    """The configuration in the file ``path``, changed by ``sets`` (each ``section.key=value``).

    Without a path ``polywire.toml`` in the working directory is read if it is there. A ``ConfigError`` has all that
    was found wrong with single values; ``Loaded.problems`` looks at them together. With ``sections`` only these are
    checked.
    """
    if path is None and DEFAULT_FILE.is_file():
        path = DEFAULT_FILE
    written = Written()
    if path is not None:
        file = path
        tree, lines = _read(file)
        written.put(tree, lambda key: Origin("file", file, lines.get(key, 0)))
    problems: list[Problem] = []
    for text in sets:
        try:
            written.put_setting(text)
        except ConfigError as error:
            problems.extend(error.problems)
    if sections is not None:
        written.tree = {name: value for name, value in written.tree.items() if name in sections}
    try:
        config = read_config(written)
    except ConfigError as error:
        problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return Loaded(config, path, tuple(sets), written.origins)


def _read(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The file's content, and the lines of its keys."""
    text = _text(path)
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ConfigError([Problem("lists or tables are nested too deeply", origin=Origin("file", path))]) from None
    except ValueError as error:
        place = _PLACE.search(str(error))
        reason = str(error)[: place.start()] if place else str(error)
        if place is None or place[1] is None:
            line, column = text.count("\n") + 1, 0
        else:
            line, column = int(place[1]), int(place[2])
        reason = f"this is not TOML: {reason[:1].lower()}{reason[1:]}"
        raise ConfigError([Problem(reason, origin=Origin("file", path, line, column))]) from None
    return tree, key_lines(text)


def _text(path: Path) -> str:
    origin = Origin("file", path)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise ConfigError([Problem("there is no such file", origin=origin)]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError([Problem(f"the file can't be read: {reason}", origin=origin)]) from None
    if len(data) > LARGEST_FILE:
        raise ConfigError([Problem(f"a configuration has at most {LARGEST_FILE} bytes", origin=origin)])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        place = Origin("file", path, line, column)
        raise ConfigError([Problem("this is not TOML: it is not UTF-8", origin=place)]) from None


JWT_KEYS: Final = {"auth.jwt", "auth.jwt.algorithms"}

At = Callable[..., Problem]


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
        reason = f"{fabric.node!r} is part of names in NATS: use letters, digits, -, _ and single dots"
        yield at(reason, "fabric", "node")
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
