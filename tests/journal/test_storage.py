"""A journal read through its hub."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polywire import journal
from polywire.journal.compaction import compact, compactable
from polywire.journal.log import Log
from polywire.journal.storage import BLOCK, JournalServer, RemoteFile, RemoteJournalError
from tests.journal.rows import rows
from tests.security.signing import SECRET, signed
from tests.server.journal_server import Pages, serving


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A journal of a compacted, a closed and an active segment, ten rows in each."""
    with Log(tmp_path / "journal", node="here") as found:
        for _ in range(2):
            found.append(rows(found.next_offset, 10), state=False)
            found.roll()
        found.append(rows(20, 10), state=False)
        compact(compactable(found.path)[0])
        yield found


@pytest.fixture
def pages(log: Log) -> Iterator[Pages]:
    with serving(log.path) as found:
        yield found


def read(found: Any, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in found.scan(**options) for row in batch.to_pylist()]


def test_a_journal_read_through_its_hub_is_the_same(pages: Pages, log: Log) -> None:
    remote, local = journal.open(pages.url), journal.open(log.path)
    assert read(remote) == read(local)
    assert [row["offset"] for row in read(remote)] == list(range(30))
    assert remote.segments() == local.segments()
    assert (remote.first_offset, remote.end_offset) == (0, 30)


def test_only_what_is_wanted_comes(pages: Pages) -> None:
    found = read(journal.open(pages.url), columns=["offset", "channel"], from_offset=8, to_offset=23, channels="a/1/b")
    assert found == [{"offset": offset, "channel": "a/1/b"} for offset in (10, 13, 16, 19, 22)]


def test_what_is_added_is_seen_after_a_refresh(pages: Pages, log: Log) -> None:
    found = journal.open(pages.url)
    log.append(rows(30, 5), state=False)
    log.roll()
    log.append(rows(35, 5), state=False)
    found.refresh()
    assert [row["offset"] for row in read(found, from_offset=25)] == list(range(25, 40))


def test_a_journal_is_followed_from_afar(pages: Pages, log: Log) -> None:
    following = journal.open(pages.url).follow(["offset"], from_offset=28, poll=0.01)
    assert next(following).column(0).to_pylist() == [28, 29]
    log.append(rows(30, 3), state=False)
    assert next(following).column(0).to_pylist() == [30, 31, 32]
    log.roll()
    log.append(rows(33, 2), state=False)
    assert next(following).column(0).to_pylist() == [33, 34]


def test_what_is_compacted_meanwhile_is_read_in_its_new_form(pages: Pages, log: Log) -> None:
    found = journal.open(pages.url)
    compact(compactable(log.path)[0])
    assert [row["offset"] for row in read(found)] == list(range(30))


def test_what_is_not_yet_safe_is_not_seen(pages: Pages, log: Log) -> None:
    with (log.path / f"{20:020}.arrow").open("ab") as file:
        file.write(b"half a batch")
    assert [row["offset"] for row in read(journal.open(pages.url))] == list(range(30))


def test_splits_can_be_read_in_other_processes(pages: Pages) -> None:
    splits = pickle.loads(pickle.dumps(journal.open(pages.url).splits(rows_each=10)))  # noqa: S301 - our own
    assert len(splits) > 1
    offsets = [row for split in splits for batch in split.read(["offset"]) for row in batch.column(0).to_pylist()]
    assert offsets == list(range(30))


def test_a_hub_with_logins_wants_a_token(log: Log, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    with serving(log.path, f"auth.jwt={{algorithms=['HS256'], key='{secret}'}}") as pages:
        with pytest.raises(RemoteJournalError, match="401 log in with a token") as caught:
            journal.open(pages.url)
        assert caught.value.status == 401
        assert journal.open(pages.url, token=signed(SECRET, "HS256")).end_offset == 30


def test_nobody_at_the_address_is_said_so() -> None:
    with pytest.raises(RemoteJournalError, match="no answer") as caught:
        journal.open("http://127.0.0.1:1")
    assert caught.value.status is None


@pytest.mark.parametrize("url", ["http://", "https://:80", "http://host:port", "http://host:99999", "ftp://host"])
def test_what_is_no_address_of_a_hub_is_said_so(url: str) -> None:
    with pytest.raises(RemoteJournalError, match="not the URL of a hub"):
        JournalServer(url)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(RemoteJournalError) as caught:
        JournalServer("ftp://anna:secret@host")
    assert "secret" not in str(caught.value)
    server = JournalServer("http://anna:secret@host:7100")
    assert server.url == "http://host:7100/journal/"
    assert "secret" not in repr(server)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://hub:7100", "http://hub:7100/journal/"),
        ("http://hub:7100/", "http://hub:7100/journal/"),
        ("http://hub:7100/journal", "http://hub:7100/journal/"),
        ("http://hub:7100/journal/", "http://hub:7100/journal/"),
        ("https://proxy/hubs/one", "https://proxy/hubs/one/journal/"),
        ("http://[::1]:7100", "http://[::1]:7100/journal/"),
    ],
)
def test_the_journal_is_found_from_the_hubs_address(url: str, place: str) -> None:
    assert JournalServer(url).url == place


def test_a_file_is_read_anywhere_in_blocks(pages: Pages, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    octets = bytes(range(256)) * (3 * BLOCK // 256) + b"end"
    (log.path / f"{5:020}.parquet").write_bytes(octets)
    server = JournalServer(pages.url)
    asked: list[tuple[int, int]] = []
    fetch = server.read

    def counting(name: str, start: int, length: int) -> bytes:
        asked.append((start, length))
        return fetch(name, start, length)

    monkeypatch.setattr(server, "read", counting)
    file = RemoteFile(server, f"{5:020}.parquet")
    assert [file.read(10) for _ in range(100)] == [octets[n * 10 : n * 10 + 10] for n in range(100)]
    assert asked == [(0, BLOCK)]
    file.seek(-5, 2)
    assert file.read(100) == octets[-5:]
    assert file.read(1) == b""
    file.seek(7)
    file.seek(3, 1)
    assert (file.tell(), file.readall()) == (10, octets[10:])


def test_a_file_that_is_gone_is_said_so(pages: Pages) -> None:
    with pytest.raises(FileNotFoundError):
        RemoteFile(JournalServer(pages.url), f"{999:020}.arrow").read(1)
