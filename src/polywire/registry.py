"""All protocols. One value describes each of them, and every list of protocols is computed from these values.

A protocol is a package with a ``PROTOCOL`` in its ``__init__.py``. Polywire's own are in ``polywire/protocols``. Others
are found by an entry point of the group ``polywire.protocols`` (docs/how-to/write-a-protocol.md)::

    [project.entry-points."polywire.protocols"]
    line = "polywire_line:PROTOCOL"

Descriptors are cheap to import: they name classes and functions as ``"module:name"``, a module of the protocol's own
package, which ``Protocol.load`` imports. Other packages are searched when all protocols are needed, or a
name that is not one of Polywire's own.

A package that can't be used is left out, and ``unusable()`` says why: it can't be imported, it describes something that
can't be, or it takes a name, code, listener or scheme that another one has. Of two packages that claim the same,
neither is used, so that the result never depends on the order in which they are found; Polywire's own are always used.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from polywire.errors import PolywireError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Transport = Literal["tcp", "tls", "unix", "ws", "wss"]
Feature = Literal[
    "publish",
    "subscribe",
    "queue",
    "nack",
    "patterns with **",
    "a name that begins or ends with /",
    "a name with + or #",
    "an empty body",
    "retain",
    "headers",
    "content_type",
    "call",
    "serve",
    "a service's name that is no level of a topic",
    "a method that is no identifier",
    "watch_demand",
]

GROUP: Final = "polywire.protocols"
STREAM: Final[tuple[Transport, ...]] = ("tcp", "tls", "unix")
WEBSOCKET: Final[tuple[Transport, ...]] = ("ws", "wss")
TRANSPORTS: Final[tuple[Transport, ...]] = get_args(Transport)
FEATURES: Final[tuple[Feature, ...]] = get_args(Feature)
"""What a program may ask of ``polywire.connect``."""

HTTP: Final = "http"
HTTP_CODE: Final = 6
"""What is published through the HTTP listener has a name and a code too, and is no protocol of its own."""

OTHER_CODES: Final = range(64, 128)
"""The codes of protocols that are not polywire's own."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")


class RegistryError(PolywireError):
    """A protocol, or a part of one, can't be used. ``package`` is the one that has it, where that is known."""

    def __init__(self, reason: str, *, package: str = "") -> None:
        super().__init__(f"{package}: {reason}" if package else reason)
        self.reason = reason
        self.package = package


def _no_options(_role: str, _capture: bytes) -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listener of a hub: ``key`` is its key in ``[listen]``, and ``about`` what the documentation says of it.

    ``default`` is its address where the configuration has none, or "off". Over WebSockets a session gets whole
    messages; for a protocol that is a ``stream`` of bytes it does not matter how messages are cut, and all that is
    written in one turn of the event loop becomes one binary message. ``options`` are keyword arguments for the session.
    """

    key: str
    about: str
    default: str = "off"
    transports: tuple[Transport, ...] = STREAM
    subprotocol: str = ""
    stream: bool = False
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A protocol. ``name`` is what it is called everywhere: in access rules, metrics and journals, and by clients.

    ``package`` is ``__name__`` of the package that describes it. ``code`` gives the protocols their order, and those of
    polywire their numbers in journals, so it never changes; a protocol of others has one of ``OTHER_CODES``.

    For hubs: ``listeners``; ``session``, a class that is called with hub, client, peer and limits; ``runs``, the
    class of its ``hub.recorder.Runs`` if it forwards publications as they came; ``logs_in``, whether clients can say
    who they are (otherwise ``[auth.listeners]`` may).

    For programs: ``schemes`` of URLs, each with its transport; ``port`` and ``secure_port`` (with TLS), where a URL has
    none; ``can``, what is possible; ``bus``, a coroutine function that is called with address and settings, and
    returns a connected ``Adapter``.

    For ``polywire decode``: ``decoder``, a class with ``feed``; ``decoder_options``, called with the end that reads
    ("server" or "client") and the captured bytes, gives its arguments; ``capture``, what a capture holds.

    ``hot`` are the modules that polywire's own build compiles.
    """

    name: str
    title: str
    code: int
    package: str
    listeners: tuple[Listener, ...] = ()
    session: str = ""
    runs: str = ""
    logs_in: bool = True
    schemes: Mapping[str, Transport] = field(default_factory=dict)
    port: int = 0
    secure_port: int = 0
    can: frozenset[Feature] = frozenset()
    bus: str = ""
    decoder: str = ""
    decoder_options: Callable[[str, bytes], Mapping[str, object]] = _no_options
    capture: Literal["stream", "lines", "message"] = "stream"
    hot: tuple[str, ...] = ()

    def load(self, reference: str) -> Any:
        """What ``session``, ``runs``, ``bus`` or ``decoder`` refers to. ``RegistryError`` where it can't be loaded."""
        module, _, name = reference.partition(":")
        try:
            return getattr(importlib.import_module(module if "." in module else f"{self.package}.{module}"), name)
        except Exception as error:
            reason = f"{reference!r} of {self.name} can't be loaded: {type(error).__name__}: {error}"
            raise RegistryError(reason, package=self.package.partition(".")[0]) from error


@dataclass(frozen=True, slots=True)
class Unusable:
    """A package whose protocol is left out."""

    package: str
    reason: str

    def __str__(self) -> str:
        return f"the protocol of {self.package} can't be used: {self.reason}"


@cache
def built_in() -> tuple[Protocol, ...]:
    """Polywire's own protocols, in the order of their codes."""
    package = importlib.import_module("polywire.protocols")
    modules = [each.name for each in pkgutil.iter_modules(package.__path__) if each.ispkg]
    found: list[Protocol] = [importlib.import_module(f"{package.__name__}.{each}").PROTOCOL for each in modules]
    return tuple(sorted(found, key=lambda each: each.code))


def protocols() -> tuple[Protocol, ...]:
    """All protocols that can be used, in the order of their codes."""
    return _all()[0]


def unusable() -> tuple[Unusable, ...]:
    """The packages whose protocols are left out."""
    return _all()[1]


def names() -> tuple[str, ...]:
    """The names that a hub counts and journals by. A protocol's place is its number in the hub and in new segments."""
    return _names(protocols())


def built_in_names() -> tuple[str, ...]:
    """The same without packages of others."""
    return _names(built_in())


@cache
def by_name(name: str) -> Protocol:
    """The protocol of that name. ``RegistryError`` if there is none."""
    for found in _candidates(lambda each: each.name == name):
        return found
    raise RegistryError(_missing(f"there is no protocol {name!r}; there is {', '.join(p.name for p in protocols())}"))


def by_listener(key: str) -> tuple[Protocol, Listener]:
    """The protocol of the listener with that key of ``[listen]``, and the listener."""
    for protocol in protocols():
        for listener in protocol.listeners:
            if listener.key == key:
                return protocol, listener
    raise RegistryError(_missing(f"there is no listener {key!r}"))


def by_scheme(scheme: str) -> Protocol | None:
    """The protocol whose URLs begin so, if there is one."""
    return next(_candidates(lambda each: scheme in each.schemes), None)


def _candidates(wanted: Callable[[Protocol], bool]) -> Iterator[Protocol]:
    """The protocols that are wanted. Polywire's own come first, so that others are not looked for in vain."""
    yield from filter(wanted, built_in())
    yield from (each for each in protocols() if each not in built_in() and wanted(each))


def _missing(reason: str) -> str:
    return "; ".join([reason, *map(str, unusable())])


def _names(found: Iterable[Protocol]) -> tuple[str, ...]:
    return tuple(name for _, name in sorted([(HTTP_CODE, HTTP), *((each.code, each.name) for each in found)]))


@cache
def _all() -> tuple[tuple[Protocol, ...], tuple[Unusable, ...]]:
    # Here, because it is slow to import, and a client of one of polywire's own protocols does not need it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return gather(built_in(), entry_points(group=GROUP))


def gather(
    own: tuple[Protocol, ...], others: "Iterable[EntryPoint]"
) -> tuple[tuple[Protocol, ...], tuple[Unusable, ...]]:
    """Polywire's own protocols and those of the entry points that can be used; and why the rest can't."""
    unusable: list[Unusable] = []
    loaded: list[tuple[str, Protocol]] = []
    for each in sorted(others, key=lambda entry: (_package(entry), entry.name)):
        try:
            loaded.append((_package(each), _checked(each)))
        except RegistryError as error:
            unusable.append(Unusable(_package(each), error.reason))
    claims: dict[str, list[str]] = {claim: ["polywire"] for each in own for claim in _claims(each)}
    claims |= {f"the name {HTTP!r}": ["polywire"], f"the listener {HTTP!r}": ["polywire"]}
    for package, protocol in loaded:
        for claim in _claims(protocol):
            claims.setdefault(claim, []).append(package)
    usable = list(own)
    for package, protocol in loaded:
        clash = next((claim for claim in _claims(protocol) if len(claims[claim]) > 1), None)
        if clash is None:
            usable.append(protocol)
        else:
            unusable.append(Unusable(package, f"{clash} is claimed by {' and '.join(claims[clash])}"))
    return tuple(sorted(usable, key=lambda each: each.code)), tuple(unusable)


def _package(entry: "EntryPoint") -> str:
    return entry.dist.name if entry.dist is not None else entry.value.partition(":")[0]


def _checked(entry: "EntryPoint") -> Protocol:
    """The protocol that a third party's entry point names. ``RegistryError`` if it is invalid."""
    try:
        found = entry.load()
    except Exception as error:
        raise RegistryError(f"{entry.value} can't be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, Protocol):
        raise RegistryError(f"{entry.value} is not a polywire.registry.Protocol")
    for problem in _problems(found):
        raise RegistryError(problem)
    return found


def _problems(found: Protocol) -> Iterator[str]:
    for name in (found.name, *(each.key for each in found.listeners)):
        if not _NAME.fullmatch(name):
            yield f"{name!r} is not a name in lower case, such as 'line' or 'line_ws'"
    if found.code not in OTHER_CODES:
        yield f"the code {found.code} is not from {OTHER_CODES.start} to {OTHER_CODES.stop - 1}"
    for scheme, transport in found.schemes.items():
        if not _SCHEME.fullmatch(scheme) or scheme in TRANSPORTS:
            yield f"{scheme!r} can't be the scheme of a URL"
        if transport not in TRANSPORTS:
            yield f"{transport!r} is not a transport; there is {', '.join(TRANSPORTS)}"
    for listener in found.listeners:
        if not listener.transports or not set(listener.transports) <= set(TRANSPORTS):
            yield f"the listener {listener.key!r} has transports other than {', '.join(TRANSPORTS)}"
    for what in sorted(found.can - set(FEATURES)):
        yield f"{what!r} is not a feature; there is {', '.join(FEATURES)}"
    if found.listeners and not found.session:
        yield "it has listeners and no session"
    if found.schemes and not (found.bus and found.port):
        yield "it has schemes, but no bus or no port"


def _claims(protocol: Protocol) -> Iterator[str]:
    """What no other protocol may have."""
    yield f"the name {protocol.name!r}"
    yield f"the code {protocol.code}"
    yield from (f"the listener {each.key!r}" for each in protocol.listeners)
    yield from (f"the scheme {scheme!r}" for scheme in protocol.schemes)
