"""The TLS context of all encrypted listeners. A reload loads a new certificate into the same context."""

import ssl
from pathlib import Path

from polywire.server.config import ConfigError, Problem
from polywire.server.config.schema import Tls

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def make_context(tls: Tls) -> ssl.SSLContext:
    """A server's context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificates(context, tls)
    return context


def load_certificates(context: ssl.SSLContext, tls: Tls) -> None:
    """Use these files from the next handshake on. A ``ConfigError`` says what is wrong with each of them."""
    problems = []
    try:
        # A key with a passphrase fails: without this OpenSSL would ask for it on the terminal.
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: b"")
    except (OSError, ValueError) as error:
        problems.append(_chain_problem(tls, error))
    context.minimum_version = VERSIONS[tls.minimum_version]
    if tls.client_ca is not None:
        reason = _certificates_problem(tls.client_ca)
        if reason:
            problems.append(Problem(f"{tls.client_ca}: {reason}", "tls.client_ca"))
        else:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if tls.require_client_certificate else ssl.CERT_OPTIONAL
    if problems:
        raise ConfigError(problems)


def _chain_problem(tls: Tls, error: OSError | ValueError) -> Problem:
    """Which of the two files is to blame, and why."""
    reason = _certificates_problem(tls.certificate)
    if reason:
        return Problem(f"{tls.certificate}: {reason}", "tls.certificate")
    key, name = (tls.certificate, "tls.certificate") if tls.key is None else (tls.key, "tls.key")
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return Problem(f"{key}: this key does not belong to the certificate {tls.certificate}", name)
    try:
        text = key.read_bytes()
    except OSError as unread:
        return Problem(f"{key}: can't be read: {unread.strerror}", name)
    if b"PRIVATE KEY-----" not in text:
        missing = "; write tls.key if it is in another file" if tls.key is None else ""
        return Problem(f"{key}: there is no private key in PEM format in this file{missing}", name)
    if b"ENCRYPTED" in text:
        return Problem(f"{key}: the private key has a passphrase; remove it with 'openssl pkey'", name)
    return Problem(f"{key}: the private key can't be loaded: {_words(error)}", name)


def _certificates_problem(path: Path) -> str:
    """What is wrong with a file of certificates; empty where it can be loaded."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except ssl.SSLError as error:
        return f"there is no certificate in PEM format in this file ({_words(error)})"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return ""


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)
