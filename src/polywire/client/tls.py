"""TLS contexts for clients and for the servers that need no hub: safe by default."""

import ssl
from pathlib import Path

from polywire.client.errors import ClientError

File = str | Path


class TlsError(ClientError):
    """A certificate or key can't be used. ``file`` is the one."""

    def __init__(self, file: File, reason: str) -> None:
        super().__init__(f"{file} can't be used: {reason}")
        self.file = str(file)


def client_context(
    *, ca: File | None = None, certificate: File | None = None, key: File | None = None, verify: bool = True
) -> ssl.SSLContext:
    """What a client trusts: the system's authorities, or those in ``ca``.

    ``certificate`` and ``key`` (one file may have both) say who this client is. Without ``verify`` anybody may be the
    peer: for trying things out only.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            raise TlsError(ca, str(error)) from error
    if certificate is not None:
        _load(context, certificate, key)
    return context


def server_context(*, certificate: File, key: File | None = None, client_ca: File | None = None) -> ssl.SSLContext:
    """What a server shows: its certificate. With ``client_ca`` clients must have one signed by these."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, key)
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise TlsError(client_ca, str(error)) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load(context: ssl.SSLContext, certificate: File, key: File | None) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise TlsError(certificate, str(error)) from error
