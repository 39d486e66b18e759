"""The name of a client's certificate.

The certificate has been verified by TLS before it comes here; this only reads, from what
``ssl.SSLObject.getpeercert()`` returns, who it was issued to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polywire.errors import PolywireError
from polywire.security.names import name_problem

SOURCES: Final = {"cn": "", "dns": "DNS", "email": "email", "uri": "URI"}
"""Where the name may stand: the subject's common name, or one kind of subject alternative name."""


class CertificateError(PolywireError):
    """A certificate that names nobody, or not clearly. ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """Which part of a certificate is the user's name: ``"cn"``, ``"dns"``, ``"email"`` or ``"uri"``."""

    source: str = "cn"

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise CertificateError(f"a certificate's name is one of {', '.join(SOURCES)}, not {self.source!r}")

    def name(self, certificate: Mapping[str, object]) -> str:
        """The name, or a ``CertificateError`` where there is none, more than one, or one that can't be a name."""
        found = common_names(certificate) if self.source == "cn" else alternative_names(certificate, self.source)
        if len(found) != 1:
            raise CertificateError(f"the certificate has {len(found)} names of kind {self.source}, one is needed")
        problem = name_problem(found[0])
        if problem is not None:
            raise CertificateError(f"the certificate's name {found[0]!r}: {problem}")
        return found[0]


def common_names(certificate: Mapping[str, object]) -> list[str]:
    """The common names of the subject."""
    subject = certificate.get("subject", ())
    return (
        [
            value
            for part in subject
            if isinstance(part, tuple)
            for pair in part
            if isinstance(pair, tuple) and len(pair) == 2
            for key, value in [pair]
            if key == "commonName" and isinstance(value, str)
        ]
        if isinstance(subject, tuple)
        else []
    )


def alternative_names(certificate: Mapping[str, object], source: str) -> list[str]:
    """The subject alternative names of one kind."""
    names = certificate.get("subjectAltName", ())
    return (
        [
            pair[1]
            for pair in names
            if isinstance(pair, tuple) and len(pair) == 2 and pair[0] == SOURCES[source] and isinstance(pair[1], str)
        ]
        if isinstance(names, tuple)
        else []
    )
