"""Method names as ``type_url`` carries them."""

from typing import NamedTuple


class MethodName(NamedTuple):
    """A method, and the full name of its service where the ``type_url`` gives it."""

    service: str | None
    method: str


def parse_type_url(type_url: str) -> MethodName | None:
    """MQTTRPC-50: the method a ``type_url`` names, or None where it names none.

    ``SayHello``, ``/SayHello`` and ``package.Service/SayHello`` are one method.
    """
    service, _, method = type_url.removeprefix("/").rpartition("/")
    if not is_identifier(method):
        return None
    if not service:
        # What is left of "//SayHello" has an empty service in front of its slash.
        return MethodName(None, method) if type_url in {method, "/" + method} else None
    if not all(is_identifier(part) for part in service.split(".")):
        return None
    return MethodName(service, method)


def is_identifier(name: str) -> bool:
    """Whether protobuf would take this as the name of a method, a service or a part of a package."""
    return name.isascii() and name.isidentifier()
