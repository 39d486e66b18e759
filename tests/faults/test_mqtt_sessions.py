"""Persistent MQTT sessions, last wills and keep alive on a running hub: bounds, age, and what survives a kill."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import argon2
import pytest

from polywire.protocols.fmqp.frames import CACHE, LAST_WILL, Publication
from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Will,
    encode,
)
from polywire.wire.frame import Frame
from tests.hub_process import HubProcess, running_hub
from tests.interop.speaker import HungUpError, StreamWire
from tests.wires import Fmqp, connected

CLOCK = """
import pathlib, runpy, sys, time
real, jump = time.time_ns, pathlib.Path({path!r})
time.time_ns = lambda: real() + int(jump.read_text()) * 10**9
time.time = lambda: time.time_ns() / 1e9
runpy.run_module("polywire", run_name="__main__", alter_sys=True)
"""
"""A hub whose time of day is set by writing seconds into a file."""

DAY = 86400
SERVER_UNAVAILABLE = 3
IDENTIFIER_REJECTED = 2
USERS = ("anna", "ben", "carl")


class Mqtt:
    """One connection, packet by packet. ``code`` and ``present`` are those of its CONNACK."""

    def __init__(self, hub: HubProcess, connect: Connect) -> None:
        self._wire = StreamWire(hub.addresses["mqtt"])
        self._decoder = Decoder(role="client")
        self._frames: list[Frame] = []
        self.say(connect)
        answer = self.hear()
        assert isinstance(answer, Connack)
        self.code, self.present = answer.return_code, answer.session_present

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._wire.close()

    def say(self, *frames: Frame) -> None:
        self._wire.send(b"".join(map(encode, frames)))

    def hear(self) -> Frame:
        while not self._frames:
            self._frames = self._decoder.feed(self._wire.receive())
        return self._frames.pop(0)

    def hangs_up(self) -> bool:
        with contextlib.suppress(HungUpError, ConnectionError):
            while True:
                self.hear()
        return True

    def subscribe(self, topic_filter: str, qos: int) -> int:
        self.say(Subscribe(1, ((topic_filter, qos),)))
        answer = self.hear()
        assert isinstance(answer, Suback)
        return answer.return_codes[0]

    def publish(self, topic: str, body: bytes, *, retain: bool = False) -> None:
        """Publish with QoS 1, and wait until the hub has it for sure."""
        self.say(Publish(topic, body, 1, retain, packet_id=7))
        assert self.hear() == Puback(7)

    def leave(self) -> None:
        """Disconnect, and wait until the hub has closed the connection."""
        self.say(Disconnect())
        assert self.hangs_up()


def kept(hub: HubProcess, client_id: str, user: str | None = None) -> Mqtt:
    """A client whose session is to be kept."""
    return Mqtt(
        hub,
        Connect(
            client_id,
            clean_session=False,
            keep_alive=0,
            will=None,
            user_name=user,
            password=None if user is None else b"secret",
        ),
    )


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("users") / "users"
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    path.write_text("".join(f"{name}:{hasher.hash('secret')}:\n" for name in USERS), encoding="utf-8")
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def hub_of(users: Path, *sets: str) -> Iterator[HubProcess]:
    with running_hub(f"auth.users={users}", *sets) as hub:
        yield hub


@pytest.mark.rule("MQTT-196")
def test_no_user_can_drive_out_the_sessions_of_another(users: Path) -> None:
    with hub_of(users, "limits.sessions=5", "limits.sessions_per_user=4") as hub:
        with kept(hub, "anna's", "anna") as anna:
            anna.subscribe("t", 1)
            anna.leave()
        with Mqtt(
            hub, Connect("", clean_session=True, keep_alive=0, will=None, user_name="ben", password=b"secret")
        ) as publisher:
            publisher.publish("t", b"acknowledged")
        for number in range(20):
            with kept(hub, f"ben's {number}", "ben") as ben:
                assert ben.code == 0
                ben.leave()
        assert "'ben's 0' of user 'ben' was replaced" in hub.wait_for_log("was replaced by a newer one").replace(
            '"', "'"
        )
        with kept(hub, "carl's", "carl") as carl:
            assert carl.code == SERVER_UNAVAILABLE
            assert carl.hangs_up()
        assert "user 'carl' is refused" in hub.wait_for_log("is refused")
        with Mqtt(
            hub, Connect("carl's", clean_session=True, keep_alive=0, will=None, user_name="carl", password=b"secret")
        ) as carl:
            assert carl.code == 0
        with kept(hub, "ben's 19", "ben") as ben, kept(hub, "ben's 15", "ben") as older:
            assert ben.present
            assert not older.present
        with kept(hub, "anna's", "anna") as anna:
            assert anna.present
            assert anna.hear() == Publish("t", b"acknowledged", 1, packet_id=1)


@pytest.mark.rule("MQTT-196")
def test_the_sessions_of_connected_clients_count_and_are_not_given_up(users: Path) -> None:
    with (
        hub_of(users, "limits.sessions_per_user=2") as hub,
        kept(hub, "1", "anna") as first,
        kept(hub, "2", "anna") as second,
    ):
        assert (first.code, second.code) == (0, 0)
        with kept(hub, "3", "anna") as third:
            assert third.code == SERVER_UNAVAILABLE
        with kept(hub, "1", "anna") as again:
            assert again.code == 0
        first.hangs_up()


@pytest.mark.rule("MQTT-195")
def test_a_session_ends_when_its_client_is_away_for_too_long_and_its_id_is_free_again(users: Path) -> None:
    with hub_of(users, "limits.session_age=1s") as hub:
        with kept(hub, "id", "anna") as anna:
            with kept(hub, "id", "ben") as ben:
                assert ben.code == IDENTIFIER_REJECTED
            anna.leave()
        assert "1 MQTT sessions ended" in hub.wait_for_log("limits.session_age")
        with kept(hub, "id", "ben") as ben:
            assert (ben.code, ben.present) == (0, False)


@pytest.mark.rule("MQTT-197")
def test_the_messages_kept_for_one_user_leave_room_for_those_of_another(users: Path) -> None:
    with hub_of(users, "limits.sessions_size=256KiB", "limits.sessions_size_per_user=128KiB") as hub:
        for user in ("anna", "ben"):
            with kept(hub, user, user) as client:
                client.subscribe(f"to/{user}", 1)
                client.leave()
        with Mqtt(
            hub, Connect("", clean_session=True, keep_alive=0, will=None, user_name="carl", password=b"secret")
        ) as publisher:
            for _ in range(50):
                publisher.publish("to/ben", b"x" * 10_000)
            publisher.publish("to/anna", b"kept")
        assert "'ben' of user 'ben'" in hub.wait_for_log("which is offline: the limit is reached")
        with kept(hub, "anna", "anna") as anna:
            assert anna.hear() == Publish("to/anna", b"kept", 1, packet_id=1)


@pytest.mark.rule("MQTT-198", "MQTT-086")
def test_what_was_sent_just_before_the_hub_was_killed_is_sent_again_with_dup(tmp_path: Path) -> None:
    with running_hub(journal=tmp_path / "journal") as hub:
        with kept(hub, "me") as client:
            client.subscribe("t", 1)
            client.leave()
        with Mqtt(hub, Connect("")) as publisher:
            publisher.publish("t", b"1")
            publisher.publish("t", b"2")
        with kept(hub, "me") as client:
            # The journal has them as waiting; that they were sent, it may not have yet.
            assert [client.hear(), client.hear()] == [
                Publish("t", b"1", 1, packet_id=1),
                Publish("t", b"2", 1, packet_id=2),
            ]
            hub.stop(signal.SIGKILL)
    with running_hub(journal=tmp_path / "journal") as hub:
        with Mqtt(hub, Connect("")) as publisher:
            publisher.publish("t", b"3")
        hub.stop(signal.SIGKILL)
    with running_hub(journal=tmp_path / "journal") as hub, kept(hub, "me") as client:
        sent = [client.hear() for _ in range(3)]
        assert [(frame.payload, frame.dup) for frame in sent if isinstance(frame, Publish)] == [
            (b"1", True),
            (b"2", True),
            (b"3", False),
        ]


@pytest.mark.rule("MQTT-199")
def test_a_change_of_the_time_of_day_neither_ends_a_connection_nor_keeps_one(tmp_path: Path) -> None:
    jump = tmp_path / "jump"
    jump.write_text("0")
    program = ("-c", CLOCK.format(path=str(jump)))
    with running_hub(program=program) as hub, Mqtt(hub, Connect("me", clean_session=True, keep_alive=2)) as client:
        begun = time.monotonic()

        def alive_at(seconds: float) -> None:
            time.sleep(max(0.0, begun + seconds - time.monotonic()))  # silence is the point
            client.say(Pingreq())
            assert client.hear() == Pingresp()

        alive_at(2.0)
        jump.write_text(str(DAY))
        alive_at(4.0)
        jump.write_text(str(-DAY))
        assert client.hangs_up()
        assert 6.9 < time.monotonic() - begun < 15


@pytest.mark.rule("MQTT-200", "FMQP-63")
def test_the_wills_of_those_who_were_connected_when_the_hub_was_killed_are_published(tmp_path: Path) -> None:
    with running_hub(journal=tmp_path / "journal") as hub:
        with kept(hub, "watcher") as watcher:
            watcher.subscribe("status/#", 1)
            watcher.leave()
        lost = Mqtt(
            hub, Connect("dev", clean_session=True, keep_alive=0, will=Will("status/dev", b"offline", 1, retain=True))
        )
        left = Mqtt(
            hub,
            Connect("polite", clean_session=True, keep_alive=0, will=Will("status/polite", b"offline", 1, retain=True)),
        )
        left.leave()
        with lost, left, connected(hub.addresses["fmqp"]) as line, Mqtt(hub, Connect("")) as publisher:
            fmqp = Fmqp(line)
            fmqp.say(Publication("status/fmqp", b"offline", CACHE | LAST_WILL))
            fmqp.settled()
            publisher.publish("other", b"what came before is in the journal now")
            hub.stop(signal.SIGKILL)
    for life in range(2):
        with running_hub(journal=tmp_path / "journal") as hub:
            if life == 0:
                hub.wait_for_log("publishing 2 last wills of its clients")
            with Mqtt(hub, Connect("")) as late:
                late.say(Subscribe(1, (("status/#", 1),)))
                assert late.hear() == Suback(1, (1,))
                found = [late.hear(), late.hear()]
                assert {frame.topic for frame in found if isinstance(frame, Publish)} == {"status/dev", "status/fmqp"}
                late.publish("other", b"what came before is in the journal now")
            assert not [line for line in hub.errors if "last wills" in line][1 - life :]
            hub.stop(signal.SIGKILL)
    with running_hub(journal=tmp_path / "journal") as hub, kept(hub, "watcher") as watcher:
        with Mqtt(hub, Connect("")) as publisher:
            publisher.publish("status/end", b"end")
        sent = [watcher.hear() for _ in range(3)]
        topics = [frame.topic for frame in sent if isinstance(frame, Publish)]
        assert topics == ["status/dev", "status/fmqp", "status/end"]


@pytest.mark.rule("MQTT-202", "MQTT-203", "MQTT-030")
def test_what_mqtt_can_not_refuse_is_logged_and_counted_and_the_rest_is_refused(users: Path, tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    rule = '[[access]]\nactions = ["publish", "subscribe"]\nchannels = ["open/**", "$SYS/**"]\n'
    config.write_text(
        f'[listen]\nmqtt = "tcp://127.0.0.1:0"\nhttp = "http://127.0.0.1:0"\n[auth]\nusers = "{users}"\n{rule}'
    )
    with running_hub(config=config) as hub:
        with Mqtt(
            hub, Connect("me", clean_session=True, keep_alive=0, will=None, user_name="anna", password=b"secret")
        ) as client:
            client.publish("secret", b"x")
            assert "'anna' from " in hub.wait_for_log("may not publish 'secret'")
            client.publish("$SYS/x", b"x")
            hub.wait_for_log("over mqtt: publish '$SYS/x' is refused: service-channel")
            assert client.subscribe("$SYS/#", 0) == 128
            hub.wait_for_log("over mqtt: subscribe '$SYS/**' is refused: unsupported")
        hub.login = "anna:secret"
        assert hub.metric('polywire_dropped_total{protocol="mqtt",reason="forbidden"}') == 1
        wire = StreamWire(hub.addresses["mqtt"])
        wire.send(bytes.fromhex("1010 0006") + b"MQIsdp" + bytes.fromhex("0302003c0002") + b"me")
        assert wire.receive() == bytes((0x20, 2, 0, 1))
        wire.close()
