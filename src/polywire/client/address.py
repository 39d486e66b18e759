"""Where a client connects to, and as whom: one URL, completed by arguments and the environment.

    fmqp://host:7103    fmqps://host    mqtt://user:password@host    umq://host/umq?token=…    fmqp+unix:/run/fmqp.sock

Passwords and tokens never stand in a text made here: not in errors, not in ``repr``.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from polywire.client.errors import AddressError
from polywire.registry import (
    TRANSPORTS,
    Protocol,
    RegistryError,
    built_in,
    by_name,
    by_scheme,
    protocols,
    unusable,
)

PORTS: Final[Mapping[str, int]] = {each.name: each.port for each in built_in() if each.schemes}
"""The ports of polywire's own protocols."""

WEBSOCKET_PORT: Final = 7101
LONGEST_UNIX_PATH: Final = 107


@dataclass(frozen=True, slots=True)
class Address:
    """One peer, and who to be there. A Unix socket has only a ``path``; so has a WebSocket, beside host and port."""

    protocol: str
    transport: str
    host: str = ""
    port: int = 0
    path: str = ""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        scheme = next(name for name, each in by_name(self.protocol).schemes.items() if each == self.transport)
        if self.transport == "unix":
            return f"{scheme}:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{self.path}"

    @property
    def encrypted(self) -> bool:
        """Whether it is TLS."""
        return self.transport in {"tls", "wss"}

    @property
    def websocket(self) -> bool:
        """Whether it is a WebSocket."""
        return self.transport in {"ws", "wss"}

    def bound(self, port: int) -> "Address":
        """The same address with the port that was found for it."""
        return replace(self, port=port)


def parse(
    url: str | None = None,
    *,
    protocol: str | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    any_port: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Address:
    """The address of a URL. Arguments go before what the URL says, and that before the environment.

    Without a URL it is ``POLYWIRE_URL``'s. Who to be is ``POLYWIRE_USER``, ``POLYWIRE_PASSWORD`` and ``POLYWIRE_TOKEN``
    where neither arguments nor URL say anything of it. ``any_port``: port 0 is allowed, as for servers.
    """
    environment = os.environ if environment is None else environment
    if url is None:
        url = environment.get("POLYWIRE_URL")
        if not url:
            raise AddressError(f"there is no URL, and POLYWIRE_URL is not set; {_examples()}", part="scheme")
    scheme, colon, rest = url.partition(":")
    kind = _kind(scheme.lower() if colon else "", protocol)
    if kind[1] == "unix":
        address = Address(*kind, path=_socket(rest))
    else:
        address = _network(kind, _split(rest), any_port=any_port)
    return _identified(address, (user, password, token), environment)


def _kind(scheme: str, protocol: str | None) -> tuple[str, str]:
    """The protocol and transport that a scheme stands for."""
    asked = None if protocol is None else _spoken(protocol)
    if scheme in TRANSPORTS:
        if asked is None:
            raise AddressError(
                f"{scheme}: is a transport and does not tell the protocol: give protocol=, or use {_schemes()}",
                part="scheme",
            )
        if scheme not in asked.schemes.values():
            can = ", ".join(asked.schemes)
            raise AddressError(f"{protocol} is not spoken over {scheme}; there is {can}", part="scheme")
        return asked.name, scheme
    found = by_scheme(scheme)
    if found is None:
        # What stands before the first colon of something that is no URL may be anything, a secret too.
        reason = f"the URL's scheme is none of ours; there is {_schemes()}"
        raise AddressError("; ".join([reason, *map(str, unusable())]), part="scheme")
    if asked is not None and asked is not found:
        raise AddressError(f"the URL says {found.name}, the argument protocol says {protocol}", part="protocol")
    return found.name, found.schemes[scheme]


def _spoken(protocol: str) -> Protocol:
    """The protocol of that name, if clients can speak it."""
    with contextlib.suppress(RegistryError):
        found = by_name(protocol)
        if found.schemes:
            return found
    known = ", ".join(each.name for each in protocols() if each.schemes)
    raise AddressError(f"there is no protocol {protocol!r}; there is {known}", part="protocol")


def _split(rest: str) -> SplitResult:
    if not rest.startswith("//"):
        raise AddressError(f"behind the scheme stands //host, such as in {_examples()}", part="host")
    try:
        return urlsplit("x:" + rest)
    except ValueError as error:
        raise AddressError("the host is not a name or an address (IPv6 stands in brackets)", part="host") from error


def _network(kind: tuple[str, str], parts: SplitResult, *, any_port: bool) -> Address:
    protocol, transport = kind
    websocket = transport in {"ws", "wss"}
    try:
        port = parts.port
    except ValueError:
        port = -1
    least = 0 if any_port else 1
    if port is not None and port < least:
        raise AddressError(f"the port is not a number from {least} to 65535", part="port") from None
    if not parts.hostname:
        raise AddressError("the host is missing", part="host")
    path = parts.path
    if websocket:
        path = path if path.strip("/") else f"/{protocol}"
    elif path.strip("/"):
        raise AddressError("a path is for WebSockets and Unix sockets only", part="path")
    if parts.fragment:
        raise AddressError("there is something behind a #, which means nothing here", part="fragment")
    address = Address(
        protocol,
        transport,
        parts.hostname,
        _default_port(protocol, transport) if port is None else port,
        path if websocket else "",
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password is not None else None,
    )
    return replace(address, token=_token(parts.query)) if parts.query else address


def _token(query: str) -> str | None:
    token = None
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "token":
            raise AddressError(f"behind the ? stands {name!r}, and only token= may", part="query")
        token = value
    return token


def _socket(rest: str) -> str:
    """The path of a Unix socket: ``/run/x`` and ``///run/x`` are the same."""
    path = rest[2:] if rest.startswith("///") else rest
    if not path or path.startswith("//"):
        raise AddressError("the path of the Unix socket is missing, such as in fmqp+unix:/run/fmqp.sock", part="path")
    if len(path.encode()) > LONGEST_UNIX_PATH:
        raise AddressError(f"the path of the Unix socket has more than {LONGEST_UNIX_PATH} bytes", part="path")
    return path


def _default_port(protocol: str, transport: str) -> int:
    if transport in {"ws", "wss"}:
        return WEBSOCKET_PORT
    found = by_name(protocol)
    return found.secure_port or found.port if transport == "tls" else found.port


def _identified(
    address: Address, given: tuple[str | None, str | None, str | None], environment: Mapping[str, str]
) -> Address:
    """The address with who to be there, from the first of the three places that says anything of it."""
    environs = tuple(environment.get(name) for name in ("POLYWIRE_USER", "POLYWIRE_PASSWORD", "POLYWIRE_TOKEN"))
    user, password, token = address.user, address.password, address.token
    if any(each is not None for each in given):
        user = given[0] if given[0] is not None else user
        password = given[1] if given[1] is not None else password
        token = given[2]
    elif user is None and password is None and token is None:
        user, password, token = environs
    if user is not None and password is None and token is None:
        password = environs[1]
    if token is not None and password is not None:
        raise AddressError("there is both a password and a token; give one of them", part="token")
    if password is not None and user is None:
        raise AddressError("there is a password and no user", part="user")
    return replace(address, user=user, password=password, token=token)


def _schemes() -> str:
    return ", ".join(scheme for each in protocols() for scheme in each.schemes)


def _examples() -> str:
    return "fmqp://127.0.0.1:7103 or mqtt+ws://127.0.0.1:7101/mqtt"
