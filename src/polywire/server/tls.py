"""The TLS context of all encrypted listeners. A reload loads a new certificate into the same context."""

import ssl

from polywire.server.config import ConfigError, Problem
from polywire.server.config.schema import Tls

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def make_context(tls: Tls) -> ssl.SSLContext:
    """A server's context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificates(context, tls)
    return context


def load_certificates(context: ssl.SSLContext, tls: Tls) -> None:
    """Use these files from the next handshake on. A ``ConfigError`` says what is wrong with them."""
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError([Problem(f"{tls.certificate}: not usable: {error}", "tls.certificate")]) from error
    context.minimum_version = VERSIONS[tls.minimum_version]
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError([Problem(f"{tls.client_ca}: not usable: {error}", "tls.client_ca")]) from error
        context.verify_mode = ssl.CERT_REQUIRED if tls.require_client_certificate else ssl.CERT_OPTIONAL
