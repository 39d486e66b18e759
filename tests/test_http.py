"""The HTTP client, at a server that answers as it is told."""

import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from polywire import http
from polywire.backoff import Backoff
from polywire.http import HttpClient, NoAnswer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LATER = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nlater"
NO = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno"
HANG_UP = b""


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives these answers, one for each request; after an empty one it hangs up. What it was asked."""
    asked: list[bytes] = []
    left = list(answers)

    def serve(listener: socket.socket) -> None:
        while left:
            connection, _ = listener.accept()
            with connection:
                while left and (request := connection.recv(65536)):
                    asked.append(request)
                    answer = left.pop(0)
                    if answer == HANG_UP:
                        break
                    connection.sendall(answer)

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/at", asked
        finally:
            left.clear()
            with closing(socket.create_connection(listener.getsockname())):
                thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BACKOFF", Backoff(first=0.001, most=0.01))


def test_a_request_is_sent_until_the_answer_is_a_lasting_one() -> None:
    with answering(LATER, HANG_UP, LATER, OK) as (url, asked), closing(HttpClient(url, timeout=5)) as client:
        answer = client.request("GET", "/x", headers={"a": "b"}, patience=5)
        assert (answer.status, answer.body) == (200, b"ok")
        assert len(asked) == 4
        assert asked[0].startswith(b"GET /at/x HTTP/1.1\r\n")


def test_an_answer_that_lasts_is_not_asked_for_again() -> None:
    with answering(NO, OK) as (url, asked), closing(HttpClient(url, timeout=5)) as client:
        answer = client.request("GET", "/x", patience=5)
        assert (answer.status, answer.text(100), answer.passing) == (400, "no", False)
        assert len(asked) == 1


def test_without_patience_the_first_answer_counts() -> None:
    with answering(LATER, OK) as (url, _), closing(HttpClient(url, timeout=5)) as client:
        answer = client.request("GET", "/x")
        assert (answer.status, answer.passing) == (503, True)


def test_a_connection_that_was_closed_meanwhile_is_replaced_at_once() -> None:
    with answering(OK, HANG_UP, OK) as (url, asked), closing(HttpClient(url, timeout=5)) as client:
        assert client.request("GET", "/x").body == b"ok"
        assert client.request("GET", "/x").body == b"ok"
        assert len(asked) == 3


def test_no_answer_is_said_so() -> None:
    with pytest.raises(NoAnswer, match=r"no answer: .*refused"):
        HttpClient("http://127.0.0.1:1", timeout=5).request("GET", "/", patience=0.05)
    with answering(HANG_UP, HANG_UP) as (url, _), pytest.raises(NoAnswer, match="without response"):
        HttpClient(url, timeout=5).request("GET", "/")


@pytest.mark.parametrize("url", ["", "http://", "ftp://host", "http://host:port", "http://host:99999"])
def test_what_is_not_the_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|port|Port"):
        HttpClient(url, timeout=5)


def test_it_can_be_pickled_and_shows_no_secrets() -> None:
    client = HttpClient("https://anna:secret@[::1]/at/", timeout=5)
    assert (client.url, client.host, client.path) == ("https://[::1]/at", "[::1]", "/at")
    assert "secret" not in repr(client)
    with answering(OK) as (url, _), closing(HttpClient(url, timeout=5, token="t")) as used:
        used.request("GET", "/")
        copy = pickle.loads(pickle.dumps(used))  # noqa: S301 - our own
        assert copy == used
        assert copy != client
