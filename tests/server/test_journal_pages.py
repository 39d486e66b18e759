"""The journal over HTTP: what is shown, to whom, and that nothing else is."""

import base64
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polywire import journal
from polywire.journal.format import ENTRY_OCTETS
from polywire.journal.log import Log
from tests.hub_process import running_hub
from tests.journal.rows import rows
from tests.security.hashing import add_user
from tests.security.signing import SECRET, signed
from tests.server.journal_server import Pages, serving

FIRST = "00000000000000000000.arrow"
SECOND = "00000000000000000010.arrow"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A journal that is being written: a closed segment of ten rows, and an active one of five."""
    with Log(tmp_path / "journal", node="here") as log:
        log.append(rows(0, 10), state=False)
        log.roll()
        log.append(rows(10, 5), state=False)
        yield tmp_path / "journal"


@pytest.fixture
def pages(folder: Path) -> Iterator[Pages]:
    with serving(folder) as found:
        yield found


def test_the_list_has_segments_with_their_offsets_and_files_with_their_octets(pages: Pages, folder: Path) -> None:
    status, headers, body = pages.get("")
    found = json.loads(body)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert (found["first_offset"], found["end_offset"]) == (0, 15)
    shown = [(each["name"], each["first_offset"], each["end_offset"], each["closed"]) for each in found["segments"]]
    assert shown == [(FIRST, 0, 10, True), (SECOND, 10, 15, False)]
    assert found["segments"][0]["min_time"] == "2023-11-14T22:13:20+00:00"
    assert {each["name"]: each["octets"] for each in found["files"]} == {
        name: (folder / name).stat().st_size
        for name in (FIRST, FIRST.replace("arrow", "index"), SECOND, SECOND.replace("arrow", "index"))
    }


def test_a_file_is_given_whole(pages: Pages, folder: Path) -> None:
    status, headers, body = pages.get(FIRST)
    assert (status, headers["accept-ranges"]) == (200, "bytes")
    assert body == (folder / FIRST).read_bytes()


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=10-19", slice(10, 20)),
        ("bytes=10-", slice(10, None)),
        ("bytes=-7", slice(-7, None)),
        ("bytes=5-999999999", slice(5, None)),
        ("bytes=-999999999", slice(0, None)),
    ],
)
def test_a_part_of_a_file_is_given(pages: Pages, folder: Path, wanted: str, part: slice) -> None:
    whole = (folder / FIRST).read_bytes()
    status, headers, body = pages.get(FIRST, range=wanted)
    assert (status, body) == (206, whole[part])
    start = whole.index(body) if part.start != 0 else 0
    assert headers["content-range"].startswith(f"bytes {start}-" if len(body) > 20 else "bytes ")
    assert headers["content-range"].endswith(f"/{len(whole)}")


@pytest.mark.parametrize("wanted", ["bytes=999999999-", "bytes=9-3", "bytes=-0"])
def test_a_part_that_is_not_there_is_said_so(pages: Pages, folder: Path, wanted: str) -> None:
    status, headers, _ = pages.get(FIRST, range=wanted)
    assert (status, headers["content-range"]) == (416, f"bytes */{(folder / FIRST).stat().st_size}")


@pytest.mark.parametrize("wanted", ["lines=1-2", "bytes=1-2,4-5", "bytes=a-b", "bytes=-", ""])
def test_another_kind_of_range_gets_the_whole_file(pages: Pages, folder: Path, wanted: str) -> None:
    status, _, body = pages.get(FIRST, range=wanted)
    assert (status, len(body)) == (200, (folder / FIRST).stat().st_size)


def test_head_tells_the_size_alone(pages: Pages, folder: Path) -> None:
    status, headers, body = pages.get(FIRST, method="HEAD")
    assert (status, headers["content-length"], body) == (200, str((folder / FIRST).stat().st_size), b"")


def test_of_the_active_segment_only_what_is_safe_is_given(pages: Pages, folder: Path) -> None:
    safe = (folder / SECOND).read_bytes()
    with (folder / SECOND).open("ab") as file:
        file.write(b"not yet fsynced")
    assert pages.get(SECOND)[2] == safe
    assert pages.get(SECOND, range=f"bytes={len(safe)}-")[0] == 416
    listed = {each["name"]: each["octets"] for each in json.loads(pages.get("")[2])["files"]}
    assert listed[SECOND] == len(safe)


def test_of_an_active_segment_whose_index_knows_nothing_nothing_is_given(pages: Pages, folder: Path) -> None:
    index = folder / SECOND.replace("arrow", "index")
    with index.open("r+b") as file:
        file.truncate(8)
    assert pages.get(SECOND)[2] == b""
    with index.open("r+b") as file:
        file.write(b"PWIX\1\0\0\0" + b"x" * ENTRY_OCTETS)
    assert pages.get(SECOND)[2] == b""
    index.unlink()
    assert pages.get(SECOND)[2] == b""


@pytest.mark.parametrize(
    "path",
    [
        "lock",
        "../journal/lock",
        "..%2flock",
        "readers/spark.json",
        "00000000000000000000.state",
        "00000000000000000099.arrow",
        "00000000000000000000.arrow/",
        "/00000000000000000000.arrow",
    ],
)
def test_nothing_else_is_given(pages: Pages, folder: Path, path: str) -> None:
    (folder / "00000000000000000000.state").write_bytes(b"secret")
    assert pages.get(path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(pages: Pages, folder: Path, method: str) -> None:
    assert pages.get(FIRST, method=method)[0] == 405
    assert (folder / FIRST).exists()


def test_a_connection_serves_request_after_request(pages: Pages, folder: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=20)
    whole = (folder / FIRST).read_bytes()
    for start in range(40):
        assert pages.get_on(connection, FIRST, range=f"bytes={start}-{start}")[2] == whole[start : start + 1]
    assert pages.get_on(connection, "nothing")[0] == 404
    assert pages.get_on(connection, FIRST)[2] == whole
    connection.close()


def test_a_large_file_goes_through_whole_to_a_reader_that_takes_its_time(pages: Pages, folder: Path) -> None:
    large = bytes(range(256)) * 40_000
    (folder / "00000000000000000001.parquet").write_bytes(large)
    connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=20)
    connection.request("GET", "/journal/00000000000000000001.parquet")
    answer = connection.getresponse()
    assert pages.get(FIRST)[0] == 200  # somebody else is served meanwhile
    assert answer.read() == large
    connection.close()


def test_a_reader_that_hangs_up_in_the_middle_harms_nobody(pages: Pages, folder: Path) -> None:
    (folder / "00000000000000000001.parquet").write_bytes(bytes(20_000_000))
    for _ in range(5):
        connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=20)
        connection.request("GET", "/journal/00000000000000000001.parquet")
        assert connection.getresponse().read(10) == bytes(10)
        connection.close()
    assert pages.get(FIRST)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7100", "127.0.0.1.evil.example", ""])
def test_a_page_in_a_browser_can_not_get_at_a_journal_on_this_machine(pages: Pages, host: str) -> None:
    assert pages.get("", host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:7100", "127.0.0.1:7100", "[::1]:7100", "LOCALHOST"])
def test_who_asks_by_address_gets_it(pages: Pages, host: str) -> None:
    assert pages.get("", host=host)[0] == 200


def test_beyond_loopback_names_are_what_people_ask_by(folder: Path) -> None:
    with serving(folder, host="hub") as pages:
        assert pages.get("", host="hub:7100")[0] == 200


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def bearer(user: str, *groups: str) -> str:
    return "Bearer " + signed(SECRET, "HS256", sub=user, groups=list(groups))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings with a user, tokens, and clients that may stay anonymous."""
    folder = tmp_path_factory.mktemp("users")
    users, secret = folder / "users", folder / "secret"
    add_user(users, "anna", "right")
    secret.write_bytes(SECRET)
    return [
        f"auth.users={users}",
        f"auth.jwt={{algorithms=['HS256'], key='{secret}'}}",
        "auth.anonymous=true",
    ]


def test_where_clients_log_in_readers_do_too(folder: Path, guarded: list[str]) -> None:
    with serving(folder, *guarded) as pages:
        for path in ("", FIRST, "nothing"):
            status, headers, _ = pages.get(path)
            assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="polywire"')
        assert pages.get("", authorization=bearer("anna"))[0] == 200
        assert pages.get(FIRST, authorization=basic("anna", "right"))[2] == (folder / FIRST).read_bytes()


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer nonsense",
        "Bearer ",
        "Basic !",
        "Basic " + base64.b64encode(b"anna").decode(),
        "Basic " + base64.b64encode(b":right").decode(),
        basic("anna", "wrong"),
        basic("nobody", "right"),
        "Digest x",
    ],
)
def test_wrong_credentials_get_nothing(folder: Path, guarded: list[str], authorization: str) -> None:
    with serving(folder, *guarded) as pages:
        status, _, body = pages.get("", authorization=authorization)
        assert status == 401
        assert b"anna" not in body


def test_an_expired_token_gets_nothing(folder: Path, guarded: list[str]) -> None:
    with serving(folder, *guarded) as pages:
        token = signed(SECRET, "HS256", exp=int(time.time()) - 10)
        assert pages.get("", authorization=f"Bearer {token}")[0] == 401


def test_guessing_passwords_is_slowed_down(folder: Path, guarded: list[str]) -> None:
    with serving(folder, *guarded, "auth.throttle.failures=1", "auth.throttle.first_wait=60") as pages:
        for _ in range(2):
            assert pages.get("", authorization=basic("anna", "wrong"))[0] == 401
        status, headers, _ = pages.get("", authorization=basic("anna", "right"))
        assert status == 429
        assert int(headers["retry-after"]) > 0


ALLOW: Callable[[str, str], str] = '{{group="readers", actions="subscribe", channels="{}"{}}}'.format


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        ([ALLOW("**", "")], 200),
        ([ALLOW("a/**", "")], 403),
        ([ALLOW("**", ', protocol="mqtt"')], 403),
        ([ALLOW("**", ""), '{protocol="mqtt", actions="subscribe", channels="x", effect="deny"}'], 403),
        ([ALLOW("**", ""), '{actions="subscribe", channels="secret/**", effect="deny"}'], 403),
        (['{group="readers", actions="publish", channels="**"}'], 403),
    ],
)
def test_only_who_may_subscribe_to_everything_may_read_everything(
    folder: Path, guarded: list[str], rules: list[str], status: int
) -> None:
    with serving(folder, *guarded, f"access=[{', '.join(rules)}]") as pages:
        assert pages.get("", authorization=bearer("anna", "readers"))[0] == status
        assert pages.get("", authorization=bearer("bert", "writers"))[0] == 403


def test_a_hub_offers_its_journal(tmp_path: Path) -> None:
    with Log(tmp_path, node="here") as log:
        log.append(rows(0, 10), state=False)
    with running_hub("journal.enabled=true", f"journal.path={tmp_path}", "journal.node=here") as hub:
        status, body = hub.get("/journal/")
        assert (status, json.loads(body)["first_offset"]) == (200, 0)
        assert json.loads(body)["end_offset"] >= 10
        assert "/journal/" in hub.get("/nothing")[1]
        batches = journal.open(hub.addresses["http"]).scan(["offset"], to_offset=10)
        assert [offset for batch in batches for offset in batch.column(0).to_pylist()] == list(range(10))


def test_a_hub_without_a_journal_has_no_such_pages() -> None:
    with running_hub() as hub:
        assert hub.get("/journal/") == (
            404,
            "no such page; available: /healthz, /readyz, /metrics, /v1/cluster, /v1/nodes/{node}/drain\n",
        )
