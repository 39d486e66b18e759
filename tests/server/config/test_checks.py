"""What is wrong with keys that are right by themselves."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from polywire.server.config import Config, ConfigError, load
from tests.server.certificates import Authority, public_keys

AUTH = "auth.anonymous=true"


def said(*sets: str, insecure: bool = False) -> list[str]:
    return [str(problem) for problem in load(sets=sets).problems(insecure=insecure)]


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:0", "tcp://hub.example.org:0"])
def test_without_auth_nothing_listens_beyond_loopback_unless_told_so(address: str) -> None:
    assert said(f"listen.mqtt={address}") == [
        (
            f"--set: listen.mqtt: {address} can be reached from other machines and no login is required: "
            "write [auth], listen on 127.0.0.1, or start with --insecure"
        )
    ]
    assert said(f"listen.mqtt={address}", insecure=True) == []
    assert said(f"listen.mqtt={address}", AUTH) == []


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://localhost:0", "tcp://[::1]:0", "unix:x.sock"])
def test_on_this_machine_no_auth_is_needed(address: str) -> None:
    assert said(f"listen.mqtt={address}") == []


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (
            ["listen.fmqp=tls://127.0.0.1:0"],
            "--set: listen.fmqp: tls://127.0.0.1:0 needs a certificate: write [tls] with certificate and key",
        ),
        (
            ["listen.umq=wss://127.0.0.1:0/umq"],
            "--set: listen.umq: wss://127.0.0.1:0/umq needs a certificate: write [tls] with certificate and key",
        ),
        (
            ["listen.fmqp=tcp://127.0.0.1:1883"],
            (
                "listen.mqtt: tcp://127.0.0.1:1883 uses the port of listen.fmqp (tcp://127.0.0.1:1883); "
                "give each its own port"
            ),
        ),
        (
            ["listen.fmqp=tcp://localhost:1883"],
            (
                "listen.mqtt: tcp://127.0.0.1:1883 uses the port of listen.fmqp (tcp://localhost:1883); "
                "give each its own port"
            ),
        ),
        (
            ["listen.sabc=tcp://0.0.0.0:1883", AUTH],
            (
                "--set: listen.sabc: tcp://0.0.0.0:1883 uses the port of listen.mqtt (tcp://127.0.0.1:1883); "
                "give each its own port"
            ),
        ),
        (
            ["listen.http=http://127.0.0.1:7105"],
            (
                "listen.sabc: tcp://127.0.0.1:7105 uses the port of listen.http (http://127.0.0.1:7105); "
                "give each its own port"
            ),
        ),
        (
            ["listen.sabc=tcp://127.0.0.1:7101", "listen.umq=off", "listen.mqtt_ws=off"],
            (
                "listen.sabc_ws: ws://127.0.0.1:7101/sabc uses the port of listen.sabc (tcp://127.0.0.1:7101); "
                "give each its own port"
            ),
        ),
        (
            ["listen.sabc_ws=ws://127.0.0.1:7101/umq"],
            "--set: listen.sabc_ws: ws://127.0.0.1:7101/umq is also the address of listen.umq; give each its own path",
        ),
        (
            ["listen.sabc_ws=ws://127.0.0.1:0/umq", "listen.umq=ws://127.0.0.1:0/umq"],
            "--set: listen.sabc_ws: ws://127.0.0.1:0/umq is also the address of listen.umq; give each its own path",
        ),
        (
            ["listen.fmqp=unix:x", "listen.mqtt=unix:x"],
            "--set: listen.mqtt: unix:x is also the address of listen.fmqp; give each its own",
        ),
        (
            [f"listen.{name}=off" for name in Config().listen.addresses()],
            "--set: listen: every listener is off; leave at least one on",
        ),
        (
            ["auth.users=nowhere"],
            "--set: auth.users: nowhere: there is no such file",
        ),
        (
            ["auth={}"],
            "--set: auth: nobody can log in: set users, jwt, certificate, listeners or anonymous",
        ),
        (
            ["auth.certificate=true"],
            "--set: auth.certificate: client certificates can't be checked without tls.client_ca",
        ),
        (
            ["auth.jwt.algorithms=HS256"],
            "--set: auth.jwt: give exactly one of key and jwks",
        ),
        (
            ["access=[{user='a', group='b', actions='publish', channels='a'}]", AUTH],
            "--set: access[0]: is for a user or for a group, not both; write two rules",
        ),
        (
            ["access=[{user='a', actions='publish', channels='a'}]"],
            "--set: access[0]: names a user or group, but without [auth] clients have no name",
        ),
        (
            ["access=[{actions='publish', channels='a/{user}'}]"],
            "--set: access[0].channels: holds {user}, but without [auth] clients have no name",
        ),
        (
            ["fabric.kind=nats"],
            "--set: fabric.kind: set fabric.url to the URL of a server of NATS, such as nats://127.0.0.1:4222",
        ),
        (
            ["fabric.cluster=a.b"],
            "--set: fabric.cluster: 'a.b' is part of names in NATS: use letters, digits, - and _",
        ),
        (
            ["fabric.node=a..b"],
            "--set: fabric.node: 'a..b' is part of names in NATS: use letters, digits, -, _ and single dots",
        ),
        ([f"fabric.key={__file__}"], "--set: fabric.key: a key needs its certificate: set certificate too"),
    ],
)
def test_what_does_not_go_together_is_said(sets: list[str], words: str) -> None:
    assert said(*sets) == [words]


LOOP = "choose another dead_letter queue"


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        (
            '[{names="a", max_deliveries=3}]',
            "queues[0]: max_deliveries and dead_letter need each other; dead_letter is missing",
        ),
        (
            '[{names="a", dead_letter="b"}]',
            "queues[0]: max_deliveries and dead_letter need each other; max_deliveries is missing",
        ),
        (
            '[{names="a", max_deliveries=3, dead_letter="a"}]',
            f"queues[0].dead_letter: dead letters would move in a circle: a to a; {LOOP}",
        ),
        (
            '[{names=["x", "a/**"], max_deliveries=3, dead_letter="a/dead"}]',
            f"queues[0].dead_letter: dead letters would move in a circle: a/dead to a/dead; {LOOP}",
        ),
    ],
)
def test_a_policy_of_queues_that_can_not_work_is_refused(policies: str, words: str) -> None:
    assert said(f"queues={policies}") == [f"--set: {words}"]


def test_dead_letters_may_go_on_to_another_queue_but_not_in_a_circle() -> None:
    chain = '{names="a", max_deliveries=3, dead_letter="b"}, {names="b", max_deliveries=3, dead_letter="c"}'
    assert said(f"queues=[{chain}]") == []
    assert said(f'queues=[{{names=["b", "c"]}}, {{names="**", max_deliveries=3, dead_letter="b"}}, {chain}]') == []
    problems = said(f'queues=[{chain}, {{names="c", max_deliveries=3, dead_letter="a"}}]')
    assert [line.partition(":")[2].partition(":")[0].strip() for line in problems] == [
        "queues[0].dead_letter",
        "queues[1].dead_letter",
        "queues[2].dead_letter",
    ]


def test_websockets_share_a_port_that_is_picked_for_them() -> None:
    paths = {"umq": "/umq", "mqtt_ws": "/mqtt", "sabc_ws": "/sabc"}
    assert said(*[f"listen.{name}=ws://127.0.0.1:0{path}" for name, path in paths.items()]) == []


def test_listeners_with_port_0_never_meet() -> None:
    assert said(*[f"listen.{name}=tcp://127.0.0.1:0" for name in ("micromsg", "fmqp", "mqtt", "sabc")]) == []


def test_the_same_port_on_different_addresses_is_two_ports() -> None:
    assert said("listen.fmqp=tcp://127.0.0.2:1883") == []


def test_ws_and_wss_do_not_share_a_port(tmp_path: Path) -> None:
    certificate = Authority(tmp_path).issue("hub")
    (problem,) = said(
        f"tls.certificate={certificate}", "listen.umq=wss://127.0.0.1:7101/umq", "listen.sabc_ws=ws://127.0.0.1:1/s"
    )
    assert problem == (
        "listen.mqtt_ws: shares its port with listen.umq (wss://127.0.0.1:7101/umq): both ws or both wss"
    )


def test_files_have_to_be_files(tmp_path: Path) -> None:
    there = Authority(tmp_path).issue("hub")
    assert said(f"tls.certificate={there}", f"tls.key={tmp_path}") == [
        f"--set: tls.key: {tmp_path}: this is not a file",
    ]


def test_clients_can_not_be_made_to_show_certificates_nobody_can_check(tmp_path: Path) -> None:
    there = Authority(tmp_path).issue("hub")
    assert said(f"tls.certificate={there}", "tls.require_client_certificate=true") == [
        "--set: tls.require_client_certificate: client certificates can't be checked without client_ca"
    ]


def test_a_public_key_can_never_pass_as_a_secret(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    algorithms = 'auth.jwt.algorithms=["RS256", "HS256"]'
    assert said(algorithms, f"auth.jwt.key={key}") == [
        "--set: auth.jwt.algorithms: one key can't be used for HS and RS; name algorithms of one kind, or use jwks"
    ]
    assert said(algorithms, f"auth.jwt.jwks={key}") == [
        (
            "--set: auth.jwt.algorithms: HS algorithms with a public key would let anyone who has that key sign "
            "tokens; name algorithms of one kind"
        )
    ]
    key.write_text(public_keys())
    assert said('auth.jwt.algorithms=["RS256", "ES256"]', f"auth.jwt.jwks={key}") == []


def test_a_certificate_that_is_none_is_found_and_so_is_its_key(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    authority = Authority(tmp_path)
    hub, other = authority.issue("hub"), authority.issue("other")
    bare = tmp_path / "bare.pem"
    bare.write_text(hub.read_text().partition("-----BEGIN PRIVATE")[0])
    (problem,) = said(f"tls.certificate={garbage}")
    assert problem.startswith(f"--set: tls.certificate: {garbage}: there is no certificate in PEM format in this file")
    assert said(f"tls.certificate={bare}") == [
        (
            f"--set: tls.certificate: {bare}: there is no private key in PEM format in this file; "
            "write tls.key if it is in another file"
        )
    ]
    assert said(f"tls.certificate={hub}", f"tls.key={garbage}") == [
        f"--set: tls.key: {garbage}: there is no private key in PEM format in this file"
    ]
    assert said(f"tls.certificate={hub}", f"tls.key={other}") == [
        f"--set: tls.key: {other}: this key does not belong to the certificate {hub}"
    ]
    (problem,) = said(f"tls.certificate={hub}", f"tls.client_ca={garbage}")
    assert problem.startswith(f"--set: tls.client_ca: {garbage}: there is no certificate in PEM format in this file")
    assert said(f"tls.certificate={bare}", f"tls.key={hub}", f"tls.client_ca={authority.root}") == []


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    hub = Authority(tmp_path).issue("hub")
    key = tmp_path / "hub.key"
    private = load_pem_private_key(hub.read_bytes(), None)
    locked = BestAvailableEncryption(b"secret")
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    assert said(f"tls.certificate={hub}", f"tls.key={key}") == [
        f"--set: tls.key: {key}: the private key has a passphrase; remove it with 'openssl pkey'"
    ]


def test_users_and_keys_of_tokens_are_read_and_every_file_is_named(tmp_path: Path) -> None:
    users, key = tmp_path / "users", tmp_path / "keys.json"
    users.write_text("anna:not a hash:\n")
    key.write_text("{}")
    found = said(f"auth.users={users}", "auth.jwt.algorithms=ES256", f"auth.jwt.jwks={key}")
    assert [problem.partition(f"{tmp_path}")[0] for problem in found] == [
        "--set: auth.users: ",
        "--set: auth.jwt.jwks: ",
    ]
    assert f"{users}:1: " in found[0]
    key.write_text("short")
    (problem,) = said("auth.jwt.algorithms=HS256", f"auth.jwt.key={key}")
    assert problem.startswith(f"--set: auth.jwt.key: {key}: the secret has 5 bytes")


def test_places_the_hub_writes_to_have_to_be_there(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    missing = tmp_path / "missing"
    assert said(f"listen.fmqp=unix:{missing}/x") == [
        f"--set: listen.fmqp: unix:{missing}/x: there is no directory {missing}; create it first"
    ]
    assert said(f"listen.fmqp=unix:{file}/x") == [
        f"--set: listen.fmqp: unix:{file}/x: no socket can be created in {file}: Not a directory"
    ]
    assert said(f"journal.path={file}/journal") == [
        (
            f"--set: journal.path: can't open the journal: {file}/journal: Not a directory; "
            "use a directory that the hub can write to"
        )
    ]
    assert said(f"journal.path={file}/journal", "journal.enabled=false") == []
    assert said(f"journal.path={missing}/a/b") == []


def test_all_problems_are_found_at_once() -> None:
    loaded = load(sets=["listen.fmqp=tls://0.0.0.0:1883", "fabric.kind=nats"])
    with pytest.raises(ConfigError) as caught:
        loaded.check()
    assert [problem.key for problem in caught.value.problems] == [
        "listen.mqtt",
        "listen.fmqp",
        "listen.fmqp",
        "fabric.kind",
    ]
    loaded = load(sets=["listen.fmqp=tcp://0.0.0.0:0"])
    loaded.check(insecure=True)
