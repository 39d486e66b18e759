"""Addresses that listeners have, and the ``Host`` and ``Origin`` that requests to them may name.

An address is one value, as the ``[listen]`` section writes it and the ``ready`` line prints it.

A page from somewhere else can make a browser send requests to a hub on the same machine or network. It can't choose two
headers, though: ``Origin`` names the page's own site, and ``Host`` the name that the browser looked up, which is the
page's own name where it made that name resolve to the hub's address (DNS rebinding). So both are checked, over HTTP and
in the opening handshake of a WebSocket.
"""

import ipaddress
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

WEBSOCKET: Final = ("ws", "wss")
SCHEMES: Final = ("http", "https", "tcp", "tls", "unix", *WEBSOCKET)
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - named here to be recognised, not bound
LONGEST_HOST: Final = 253
LONGEST_UNIX_PATH: Final = 107
"""What a ``sockaddr_un`` holds, less its final NUL."""

EXAMPLES: Final = {
    "http": "http://127.0.0.1:7100",
    "https": "https://127.0.0.1:7100",
    "tcp": "tcp://127.0.0.1:7103",
    "tls": "tls://127.0.0.1:7103",
    "unix": "unix:/run/polywire.sock",
    "ws": "ws://127.0.0.1:7101/umq",
    "wss": "wss://127.0.0.1:7101/umq",
}
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)+")


@dataclass(frozen=True, slots=True)
class Address:
    """One address. ``host`` has no brackets; a Unix socket has only a ``path``; port 0 means any free one."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def encrypted(self) -> bool:
        """Whether it needs a certificate."""
        return self.scheme in {"https", "tls", "wss"}

    @property
    def websocket(self) -> bool:
        """Whether it is a path on a WebSocket port, which it may share with others."""
        return self.scheme in WEBSOCKET

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.scheme == "unix" or self.host.lower().rstrip(".") == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def bound(self, port: int) -> "Address":
        """The same address with the port that was found for it."""
        return replace(self, port=port)

    def below(self, folder: Path) -> "Address":
        """The same address, a Unix socket's relative path taken from ``folder``."""
        return replace(self, path=str(folder / self.path)) if self.scheme == "unix" else self


def parse_address(text: str, schemes: Collection[str] = SCHEMES) -> Address:
    """The address written in ``text``. A ``ValueError`` says what is wrong with it."""
    scheme, colon, rest = text.partition(":")
    scheme = scheme.lower()
    if not colon or scheme not in SCHEMES:
        raise ValueError(f"an address begins with {_one_of(schemes)}, such as {_example(schemes)}")
    if scheme not in schemes:
        raise ValueError(f"{scheme} is not supported here; allowed is {_one_of(schemes)}, such as {_example(schemes)}")
    if scheme == "unix":
        return _parse_unix(rest)
    if not rest.startswith("//"):
        raise ValueError(f"after {scheme}: there must be two slashes and a host, such as {EXAMPLES[scheme]}")
    return _parse_url(scheme, f"{scheme}:{rest}")


def _parse_unix(rest: str) -> Address:
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if path.startswith("//"):
        raise ValueError(f"a Unix socket has a path and no host, such as {EXAMPLES['unix']}")
    if not path or path.endswith("/"):
        raise ValueError(f"unix: is followed by the path of a socket, such as {EXAMPLES['unix']}")
    if not path.isprintable():
        raise ValueError("the path must not contain control characters")
    octets = len(path.encode())
    if octets > LONGEST_UNIX_PATH:
        raise ValueError(f"the path of a Unix socket has at most {LONGEST_UNIX_PATH} bytes, this one has {octets}")
    return Address("unix", path=path)


def _parse_url(scheme: str, text: str) -> Address:
    if " " in text or not text.isprintable():
        raise ValueError("an address must not contain spaces or control characters")
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise ValueError(f"{error}; an address looks like {EXAMPLES[scheme]}") from None
    if url.username is not None or url.query or url.fragment or text.endswith(("?", "#")):
        raise ValueError(f"an address has no user, query or fragment; it looks like {EXAMPLES[scheme]}")
    host = _host(url, scheme)
    if port is None:
        raise ValueError(f"the port is missing, such as in {EXAMPLES[scheme]}; 0 picks a free one")
    path = url.path
    if scheme in WEBSOCKET:
        if not _PATH.fullmatch(path) or path == "/":
            raise ValueError(f"a WebSocket address ends in a path, such as {EXAMPLES[scheme]}")
    elif path not in {"", "/"}:
        raise ValueError(f"a {scheme} address has no path; it looks like {EXAMPLES[scheme]}")
    else:
        path = ""
    return Address(scheme, host, port, path)


def _host(url: SplitResult, scheme: str) -> str:
    host = url.hostname
    if not host:
        raise ValueError(
            f"the host is missing, such as in {EXAMPLES[scheme]}; 0.0.0.0 or [::] listens on all addresses"
        )
    if ":" in host or re.fullmatch(r"[0-9.]+", host):
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            raise ValueError(f"{host} is not an IP address") from None
    if len(host) > LONGEST_HOST or not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{host} is not the name of a host")
    return host


def _one_of(schemes: Collection[str]) -> str:
    names = [f"{name}:" if name == "unix" else f"{name}://" for name in SCHEMES if name in schemes]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _example(schemes: Collection[str]) -> str:
    return next(EXAMPLES[name] for name in SCHEMES if name in schemes)


EXAMPLE = "https://console.example.com"
DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_origin(text: str) -> str:
    """An origin the way browsers write it: lower case, without a default port. A ``ValueError`` says what is wrong."""
    wrong = f"an origin is a scheme, a host and perhaps a port, such as {EXAMPLE}"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise ValueError(wrong) from None
    if url.scheme not in DEFAULT_PORTS or not url.hostname or url.username is not None or not text.isprintable():
        raise ValueError(wrong)
    if url.path not in {"", "/"} or url.query or url.fragment or " " in text:
        raise ValueError(wrong)
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    suffix = "" if port is None or port == DEFAULT_PORTS[url.scheme] else f":{port}"
    return f"{url.scheme}://{host}{suffix}"


def refusal(
    host: str, origin: str | None, listener: Address, allowed: Collection[str], *, any_name: bool = False
) -> str | None:
    """Why a request with these headers is refused, or None.

    ``allowed`` is ``listen.allowed_origins``. ``any_name``: the listener has names that it can't know.
    """
    if not any_name and not _is_known(host, listener, allowed):
        name = host[:100] or "nobody"
        return (
            f"this hub does not accept the host name {name!r}: use its address, such as http://127.0.0.1:7100/, "
            "or add the origin to listen.allowed_origins"
        )
    if origin is not None and origin.lower() not in allowed and not _is_same(origin, host):
        return f"pages from {origin[:100]!r} may not use this hub: add the origin to listen.allowed_origins"
    return None


def _is_known(host: str, listener: Address, allowed: Collection[str]) -> bool:
    """Whether a ``Host`` is a name of this listener. An address always is: a page can't claim one as its own name."""
    name = _host_of(host)
    if not name:
        return False
    known = {"localhost", listener.host.lower(), *(urlsplit(each).hostname for each in allowed)}
    if listener.host in WILDCARDS:
        known.add(socket.gethostname().lower())
    if name in known:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str) -> bool:
    """Whether an origin is the host that was asked. The scheme may differ: a proxy may have ended TLS."""
    scheme, _, authority = origin.lower().partition("://")
    if scheme not in DEFAULT_PORTS or not authority:
        return False
    suffix = f":{DEFAULT_PORTS[scheme]}"
    return authority.removesuffix(suffix) == host.lower().removesuffix(suffix)


def _host_of(authority: str) -> str:
    """The host of ``host`` or ``host:port``, without brackets; empty where it is neither."""
    try:
        url = urlsplit(f"//{authority}")
        url.port  # noqa: B018 - raises where it is no number
        return "" if url.path or url.query or url.username is not None else (url.hostname or "").rstrip(".")
    except ValueError:
        return ""
