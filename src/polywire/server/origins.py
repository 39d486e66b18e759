"""Which ``Host`` and ``Origin`` a request may name, over HTTP and for the opening handshake of a WebSocket.

A page from somewhere else can make a browser send requests to a hub on the same machine or network. It can't choose
these two headers, though: ``Origin`` names the page's own site, and ``Host`` the name that the browser looked up, which
is the page's own name where it made that name resolve to the hub's address (DNS rebinding).
"""

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from polywire.server.address import WILDCARDS, Address

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
            f"this hub is not known as {name!r}: use its address, such as http://127.0.0.1:7100/, "
            "or add the origin to listen.allowed_origins"
        )
    if origin is not None and origin.lower() not in allowed and not _is_same(origin, host):
        return f"pages of {origin[:100]!r} may not use this hub: add the origin to listen.allowed_origins"
    return None


def _is_known(host: str, listener: Address, allowed: Collection[str]) -> bool:
    """Whether a ``Host`` is a name of this listener. An address always is: a page can't claim one as its own name."""
    name = _host(host)
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


def _host(authority: str) -> str:
    """The host of ``host`` or ``host:port``, without brackets; empty where it is neither."""
    try:
        url = urlsplit(f"//{authority}")
        url.port  # noqa: B018 - raises where it is no number
        return "" if url.path or url.query or url.username is not None else (url.hostname or "").rstrip(".")
    except ValueError:
        return ""
