"""Where a service is reached: one topic for both directions, or two for each client."""

from typing import NamedTuple

from polywire.protocols.mqttrpc.errors import LocalProtocolError

MAX_OCTETS = 65_535
"""MQTT's own limit on a topic."""

REQUESTS = "rq"
RESPONSES = "rsp"


class ClientTopic(NamedTuple):
    """A topic of the option ``topics="per-client"``, taken apart. ``direction`` is ``rq`` or ``rsp``."""

    client_id: str
    service: str
    direction: str


def service_topic(service: str) -> str:
    """MQTTRPC-41: the topic on which a service is called, and answers."""
    return _checked("/" + _level(service, "service name"))


def service_of(topic: str) -> str | None:
    """MQTTRPC-43: the service a topic belongs to, or None where it is not of the form ``/<name>``."""
    name = topic[1:]
    return name if topic[:1] == "/" and _problem(name) is None else None


def request_topic(client_id: str, service: str) -> str:
    """MQTTRPC-42: where this client publishes its Requests, with topics per client."""
    return _client_topic(client_id, service, REQUESTS)


def response_topic(client_id: str, service: str) -> str:
    """MQTTRPC-42: where this client hears Responses, with topics per client."""
    return _client_topic(client_id, service, RESPONSES)


def request_filter(service: str) -> str:
    """What a server subscribes to in order to hear all clients, with topics per client."""
    return _checked(f"+/{_level(service, 'service name')}/{REQUESTS}")


def client_topic_of(topic: str) -> ClientTopic | None:
    """The parts of a topic per client, or None where it is not one."""
    parts = topic.split("/")
    if len(parts) != 3 or parts[2] not in {REQUESTS, RESPONSES} or parts[0][:1] == "$":
        return None
    if _problem(parts[0]) is not None or _problem(parts[1]) is not None:
        return None
    return ClientTopic(parts[0], parts[1], parts[2])


def answer_topic(topic: str) -> str | None:
    """MQTTRPC-02: where the Responses to a Request heard on ``topic`` go, or None where no call is made on it."""
    if service_of(topic) is not None:
        return topic
    parts = client_topic_of(topic)
    if parts is None or parts.direction != REQUESTS:
        return None
    return response_topic(parts.client_id, parts.service)


def _client_topic(client_id: str, service: str, direction: str) -> str:
    if client_id[:1] == "$":
        # A server's subscription starts with "+", which by MQTT's rules does not match a level starting with "$".
        raise LocalProtocolError(f"the client id {client_id!r} starts with '$'", rule="MQTTRPC-42")
    return _checked(f"{_level(client_id, 'client id')}/{_level(service, 'service name')}/{direction}")


def _level(name: str, what: str) -> str:
    wrong = _problem(name)
    if wrong is not None:
        raise LocalProtocolError(f"the {what} {name!r} {wrong}, so it can't be a level of a topic", rule="MQTTRPC-43")
    return name


def _problem(name: str) -> str | None:
    """Why a name can't be one level of a topic that is published to."""
    if not name:
        return "is empty"
    for character in "/+#\0":
        if character in name:
            return f"contains {character!r}"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "can't be written as UTF-8"
    return None


def _checked(topic: str) -> str:
    size = len(topic.encode())
    if size > MAX_OCTETS:
        raise LocalProtocolError(f"the topic has {size} octets, more than {MAX_OCTETS}", rule="MQTTRPC-43")
    return topic
