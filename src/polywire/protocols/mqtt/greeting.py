"""How a client of MQTT says who it is, and what a server means that does not let it in."""

import secrets
from typing import Final

from polywire.client.address import Address
from polywire.client.errors import Refused
from polywire.protocols.mqtt.errors import LocalProtocolError
from polywire.protocols.mqtt.frames import SERVER_UNAVAILABLE, Connect, Will, encode

REFUSALS: Final = (
    "",
    "the server does not speak MQTT 3.1.1",
    "the server rejects the client id",
    "the server is not available",
    "wrong user name or password",
    "not authorized",
)
"""By return code of CONNACK (MQTT-083)."""


def greeting(
    address: Address, client_id: str | None, clean_session: bool, keep_alive: int, will: Will | None
) -> Connect:
    """The CONNECT for an address, which says who to be there. A token is a password under the name ``token``."""
    if client_id is None and not clean_session:
        raise LocalProtocolError("a session that outlives its connection needs a client id", rule="MQTT-063")
    user, password = address.user, address.password
    if address.token is not None:
        user, password = "token", address.token
    connect = Connect(
        client_id or f"polywire-{secrets.token_hex(8)}",
        clean_session,
        keep_alive,
        will,
        user,
        None if password is None else password.encode(),
    )
    encode(connect)  # raises what can't be said before anybody is asked
    return connect


def refusal(code: int) -> Refused:
    """What a return code that is not 0 means."""
    return Refused(REFUSALS[code], code=code, temporary=code == SERVER_UNAVAILABLE)
