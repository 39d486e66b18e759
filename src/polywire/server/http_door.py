"""Who it is that asks over HTTP: by token or password where clients log in, else somebody at this machine."""

import asyncio
import base64
import binascii
import ipaddress
from typing import Final

from polywire.hub.access import ANONYMOUS, Identity
from polywire.hub.peer import Login, Refusal
from polywire.server.gate import Gate
from polywire.server.http_resources import Reply, Request

LISTENER: Final = "http"
TEXT: Final = "text/plain; charset=utf-8"


class HttpDoor:
    """Lets people in. ``local``: the listener can be reached from this machine only."""

    def __init__(self, gate: Gate, *, local: bool) -> None:
        self._gate = gate
        self._local = local

    async def who(self, request: Request) -> Identity | Reply:
        """Who asks, or what to answer where that can't be said."""
        if not self._gate.has_logins:
            host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
            # A page in a browser may have its own name point here, but not an address or localhost.
            if self._local and not _is_this_machine(host):
                return words(403, "ask by address, such as http://127.0.0.1:7100/")
            return ANONYMOUS
        login = _login(request.headers.get("authorization", ""))
        if login is None:
            return _login_first("show a token: 'authorization: Bearer …'")
        who = await self._identify(login, request.address)
        if isinstance(who, Refusal):
            if who.retry_after > 0:
                return words(429, who.reason, ("retry-after", str(int(who.retry_after) + 1)))
            return _login_first(who.reason)
        if who.how == "anonymous" or (who.expires is not None and who.expires < self._gate.hub.clock() / 1e9):
            return _login_first("login failed")
        return who

    async def _identify(self, login: Login, address: str) -> Identity | Refusal:
        outcome: asyncio.Future[Identity | Refusal] = asyncio.get_running_loop().create_future()

        def done(who: Identity | Refusal) -> None:
            if not outcome.done():
                outcome.set_result(who)

        self._gate.authenticate(login, None, LISTENER, address, done)
        return await outcome


def words(status: int, text: str, *headers: tuple[str, str]) -> Reply:
    """An answer for people."""
    return Reply(status, TEXT, text.encode() + b"\n", headers)


def _login(authorization: str) -> Login | None:
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer" and value:
        return Login(token=value.strip())
    if scheme.lower() == "basic":
        try:
            user, mark, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return Login(user, password) if mark and user else None
    return None


def _is_this_machine(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")) is not None
    except ValueError:
        return False


def _login_first(text: str) -> Reply:
    return words(401, text, ("www-authenticate", 'Bearer realm="polywire"'))
