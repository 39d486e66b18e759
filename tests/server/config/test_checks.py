"""What is wrong with keys that are right by themselves."""

from pathlib import Path

import pytest

from polywire.server.config import Config, ConfigError, load

AUTH = "auth.anonymous=true"


def said(*sets: str, insecure: bool = False) -> list[str]:
    return [str(problem) for problem in load(sets=sets).problems(insecure=insecure)]


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:0", "tcp://hub.example.org:0"])
def test_without_auth_nothing_listens_beyond_loopback_unless_told_so(address: str) -> None:
    assert said(f"listen.mqtt={address}") == [
        (
            f"--set: listen.mqtt: {address} can be reached from other machines and nobody has to log in: "
            "write [auth], listen on 127.0.0.1, or start with --insecure"
        )
    ]
    assert said(f"listen.mqtt={address}", insecure=True) == []
    assert said(f"listen.mqtt={address}", AUTH) == []


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://localhost:0", "tcp://[::1]:0", "unix:/run/x.sock"])
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
                "listen.mqtt: tcp://127.0.0.1:1883 wants the port that listen.fmqp (tcp://127.0.0.1:1883) has; "
                "give each its own"
            ),
        ),
        (
            ["listen.fmqp=tcp://localhost:1883"],
            (
                "listen.mqtt: tcp://127.0.0.1:1883 wants the port that listen.fmqp (tcp://localhost:1883) has; "
                "give each its own"
            ),
        ),
        (
            ["listen.sabc=tcp://0.0.0.0:1883", AUTH],
            (
                "--set: listen.sabc: tcp://0.0.0.0:1883 wants the port that listen.mqtt (tcp://127.0.0.1:1883) has; "
                "give each its own"
            ),
        ),
        (
            ["listen.http=http://127.0.0.1:7105"],
            (
                "listen.sabc: tcp://127.0.0.1:7105 wants the port that listen.http (http://127.0.0.1:7105) has; "
                "give each its own"
            ),
        ),
        (
            ["listen.sabc=tcp://127.0.0.1:7101", "listen.umq=off", "listen.mqtt_ws=off"],
            (
                "listen.sabc_ws: ws://127.0.0.1:7101/sabc wants the port that listen.sabc (tcp://127.0.0.1:7101) has; "
                "give each its own"
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
            ["listen.fmqp=unix:/run/x", "listen.mqtt=unix:/run/x"],
            "--set: listen.mqtt: unix:/run/x is also the address of listen.fmqp; give each its own",
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
            "--set: auth: nobody can log in: give users, jwt, certificate, listeners or anonymous",
        ),
        (
            ["auth.certificate=true"],
            "--set: auth.certificate: certificates of clients can't be checked without tls.client_ca",
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
            "--set: access[0]: names a user or group, but without [auth] nobody has a name",
        ),
        (
            ["access=[{actions='publish', channels='a/{user}'}]"],
            "--set: access[0].channels: holds {user}, but without [auth] nobody has a name",
        ),
        (
            ["fabric.kind=nats"],
            '--set: fabric.kind: kind is "nats", so url has to say where the cluster is',
        ),
    ],
)
def test_what_does_not_go_together_is_said(sets: list[str], words: str) -> None:
    assert said(*sets) == [words]


def test_websockets_share_a_port_that_is_picked_for_them() -> None:
    paths = {"umq": "/umq", "mqtt_ws": "/mqtt", "sabc_ws": "/sabc"}
    assert said(*[f"listen.{name}=ws://127.0.0.1:0{path}" for name, path in paths.items()]) == []


def test_listeners_with_port_0_never_meet() -> None:
    assert said(*[f"listen.{name}=tcp://127.0.0.1:0" for name in ("micromsg", "fmqp", "mqtt", "sabc")]) == []


def test_the_same_port_on_different_addresses_is_two_ports() -> None:
    assert said("listen.fmqp=tcp://127.0.0.2:1883") == []


def test_ws_and_wss_do_not_share_a_port(tmp_path: Path) -> None:
    certificate = tmp_path / "hub.pem"
    certificate.touch()
    (problem,) = said(
        f"tls.certificate={certificate}", "listen.umq=wss://127.0.0.1:7101/umq", "listen.sabc_ws=ws://127.0.0.1:1/s"
    )
    assert problem == (
        "listen.mqtt_ws: shares its port with listen.umq (wss://127.0.0.1:7101/umq): both ws or both wss"
    )


def test_files_have_to_be_files(tmp_path: Path) -> None:
    there = tmp_path / "hub.pem"
    there.touch()
    assert said(f"tls.certificate={there}", f"tls.key={tmp_path}") == [
        f"--set: tls.key: {tmp_path}: this is not a file",
    ]


def test_clients_can_not_be_made_to_show_certificates_nobody_can_check(tmp_path: Path) -> None:
    there = tmp_path / "hub.pem"
    there.touch()
    assert said(f"tls.certificate={there}", "tls.require_client_certificate=true") == [
        "--set: tls.require_client_certificate: certificates of clients can't be checked without client_ca"
    ]


def test_a_public_key_can_never_pass_as_a_secret(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    algorithms = 'auth.jwt.algorithms=["RS256", "HS256"]'
    assert said(algorithms, f"auth.jwt.key={key}") == [
        "--set: auth.jwt.algorithms: one key can't serve HS and RS; name algorithms of one kind, or use jwks"
    ]
    assert said(algorithms, f"auth.jwt.jwks={key}") == [
        (
            "--set: auth.jwt.algorithms: HS together with public keys would let whoever knows one sign; "
            "name algorithms of one kind"
        )
    ]
    assert said('auth.jwt.algorithms=["RS256", "ES256"]', f"auth.jwt.jwks={key}") == []


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
