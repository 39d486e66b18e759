"""A rule set as a new operator would write it: a sensor that may publish below its own name, and nothing else.

Everything goes the operator's way: a file of users, one configuration file, one ``polywire serve``.
"""

import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

import pytest

from polywire.protocols.fmqp import Publication, Subscription
from polywire.protocols.fmqp import encode as encode_fmqp
from polywire.protocols.fmqp.frames import CACHE, FEEDBACK, LAST_WILL
from polywire.protocols.mqtt import Connack, Connect, Decoder, Will, encode
from polywire.wire.frame import Frame
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.interop.fmqp_speaker import Fmqp
from tests.interop.speaker import RefusedError, Speaker, StreamWire
from tests.interop.speakers import speak
from tests.security.hashing import add_user
from tests.server.certificates import Authority

RULES = """
[[access]]
group = "sensors"
actions = ["publish"]
channels = ["sensors/{user}/**"]

[[access]]
group = "duty"
actions = ["publish", "subscribe", "call", "serve"]
channels = ["**"]
"""
P = ParamSpec("P")

LOGGING_IN = ["umq", "micromsg", "mqtt", "sabc"]
KINDS = [*LOGGING_IN, "mqtt-ws", "sabc-ws"]
FORBIDDEN = {"umq": "12", "micromsg": "forbidden", "sabc": "403", "sabc-ws": "403"}
"""What a client is told that may not do something. MQTT has words for subscriptions alone."""

OWN = "sensors/s7/temperature"
ELSEWHERE = ["sensors/s8/temperature", "sensors", "sensors/s77/x", "other", "/s7", "queue/jobs"]
CHANNELS = [OWN, "sensors/s7/**", "sensors/*/temperature", "**", "*", "other", "/thermostat", "queue/jobs"]


@dataclass
class Site:
    """A hub with users and rules, and ways to be one of its users."""

    hub: HubProcess
    authority: Authority

    def login(self, kind: str, user: str = "s7") -> Speaker:
        return speak(kind, self.hub.addresses, user, f"{user}'s secret")

    def sensor_on_fmqp(self) -> Fmqp:
        """FMQP has no login: the sensor is whom its certificate, or else the listener, says."""
        trust = None
        if self.hub.addresses["fmqp"].startswith("tls:"):
            trust = ssl.create_default_context(cafile=str(self.authority.root))
            trust.load_cert_chain(self.authority.issue("s7"))
        return Fmqp(StreamWire(self.hub.addresses["fmqp"], trust), marks=False)


def written(folder: Path, *, by_certificate: bool) -> tuple[Path, Authority]:
    """The configuration file, with the users and certificates it names."""
    users = folder / "polywire.users"
    add_user(users, "s7", "s7's secret", "sensors")
    add_user(users, "anna", "anna's secret", "duty")
    authority = Authority(folder)
    listen = {**LISTEN, "fmqp": "tls://127.0.0.1:0"} if by_certificate else LISTEN
    text = "[listen]\n" + "".join(f'{key} = "{address}"\n' for key, address in listen.items())
    text += f'[auth]\nusers = "{users}"\n'
    if by_certificate:
        text += f'certificate = true\n[tls]\ncertificate = "{authority.issue("hub")}"\nclient_ca = "{authority.root}"\n'
    else:
        text += '[auth.listeners]\nfmqp = "s7"\n'
    config = folder / "polywire.toml"
    config.write_text(text + RULES, encoding="utf-8")
    return config, authority


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    config, authority = written(tmp_path_factory.mktemp("operator"), by_certificate=True)
    with running_hub(config=config) as hub:
        yield Site(hub, authority)
        assert hub.stop() == 0


def outcome(action: Callable[P, object], *args: P.args, **named: P.kwargs) -> str:
    """What the client is told: a code, or ``done``."""
    try:
        action(*args, **named)
    except RefusedError as refused:
        return refused.code
    return "done"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rule("MICROMSG-187", "MQTT-104")
def test_a_sensor_publishes_below_its_own_name_and_nowhere_else(site: Site, kind: str) -> None:
    with site.login("sabc", "anna") as duty, site.login(kind) as sensor:
        duty.subscribe("**")
        for channel in ELSEWHERE:
            # MQTT 3.1.1 can't refuse a publication: it is acknowledged, and goes nowhere.
            assert outcome(sensor.publish, channel, b"wrong") == FORBIDDEN.get(kind, "done")
        sensor.publish(OWN, b"21.5")
        heard = duty.receive()
        assert (heard.channel, heard.body) == (OWN, b"21.5")
        duty.publish("queue/jobs", b"the only one")
        duty.subscribe("queue/jobs")
        assert duty.receive().body == b"the only one"


@pytest.mark.parametrize("kind", KINDS)
def test_a_sensor_may_subscribe_to_nothing(site: Site, kind: str) -> None:
    with site.login(kind) as sensor:
        told = {channel: outcome(sensor.subscribe, channel) for channel in CHANNELS}
    assert told == dict.fromkeys(CHANNELS, FORBIDDEN.get(kind, "80"))


@pytest.mark.parametrize("kind", ["umq", "sabc", "sabc-ws"])
def test_a_sensor_may_neither_call_nor_serve(site: Site, kind: str) -> None:
    with site.login("umq", "anna") as duty, site.login(kind) as sensor:
        duty.serve("thermostat")
        assert outcome(sensor.call, "thermostat", "set", b"22") == FORBIDDEN[kind]
        assert outcome(sensor.serve, "thermostat") == FORBIDDEN[kind]
        assert outcome(sensor.serve, "another") == FORBIDDEN[kind]


@pytest.mark.parametrize("kind", ["mqtt", "mqtt-ws"])
def test_rpc_over_mqtt_is_refused_with_its_topic(site: Site, kind: str) -> None:
    with site.login("umq", "anna") as duty, site.login("mqtt", "anna") as listener, site.login(kind) as sensor:
        duty.serve("thermostat")
        listener.subscribe("/thermostat")
        assert outcome(sensor.serve, "thermostat") == "80"
        sensor.publish("/thermostat", b"a Request")
        listener.publish("/thermostat", b"the only one")
        assert listener.receive().body == b"the only one"


def test_a_will_needs_the_same_right_as_a_publication(site: Site) -> None:
    with site.login("sabc", "anna") as duty:
        duty.subscribe("**")
        wires = []
        for will in (Will("other", b"wrong"), Will("sensors/s7/will", b"right"), None):
            wire = StreamWire(site.hub.addresses["mqtt"])
            wires.append(wire)
            # Under the same client id each takes the place of the one before it, whose will is due then.
            wire.send(
                encode(
                    Connect("s7", clean_session=True, keep_alive=0, will=will, user_name="s7", password=b"s7's secret")
                )
            )
            assert Decoder(role="client").feed(wire.receive()) == [Connack(session_present=False, return_code=0)]
        for wire in wires:
            wire.close()
        assert duty.receive().body == b"right"


def test_whoever_does_not_log_in_or_lies_is_refused_in_the_protocols_own_words(site: Site) -> None:
    def in_and_out(kind: str, *login: str) -> None:
        speak(kind, site.hub.addresses, *login).close()

    told = {kind: outcome(in_and_out, kind, "s7", "a guess") for kind in LOGGING_IN}
    assert told == {"umq": "1", "micromsg": "forbidden", "mqtt": "4", "sabc": "401"}
    told = {kind: outcome(in_and_out, kind) for kind in LOGGING_IN}
    assert told == {"umq": "1", "micromsg": "forbidden", "mqtt": "5", "sabc": "401"}


@pytest.mark.parametrize("by_certificate", [True, False], ids=["certificate", "listener"])
@pytest.mark.rule("FMQP-03")
def test_on_fmqp_the_sensor_is_who_its_certificate_or_the_listener_says(tmp_path: Path, by_certificate: bool) -> None:
    config, authority = written(tmp_path, by_certificate=by_certificate)
    with running_hub(config=config) as hub:
        site = Site(hub, authority)
        with site.login("umq-envelope", "anna") as duty, site.sensor_on_fmqp() as sensor:
            duty.subscribe("**")
            asked = [channel for channel in CHANNELS if not channel.endswith("**")]
            for channel in asked:
                sensor.subscribe(channel)
            for channel in [*(each for each in ELSEWHERE if each != "/s7"), "*/s7/temperature", "sensors/*/x"]:
                sensor.publish(channel, b"wrong")
            for signal in ("$/signals/stop", "$/signals/terminate"):
                sensor.publish(signal, b"now")
            sensor.publish(OWN, b"21.5")
            heard = duty.receive()
            assert (heard.channel, heard.body) == (OWN, b"21.5")
            # FMQP has no words to refuse anything: it is dropped, and counted.
            refused = len(asked) + len(ELSEWHERE) - 1 + 2 + 2
            hub.login = "anna:anna's secret"
            assert hub.metric('polywire_dropped_total{protocol="fmqp",reason="forbidden"}') == refused
            for channel in (OWN, "other", "/thermostat", "queue/jobs"):
                duty.publish(channel, b"not for sensors")
            assert hub.stop() == 0
            assert not sensor.heard_before_the_end()


OPEN = """
[[access]]
actions = ["publish", "subscribe"]
channels = ["open/**", "fmqp-speaker/**", "/near", "/far"]

[[access]]
protocol = "sabc"
actions = ["call", "serve"]
channels = ["near", "far"]
"""
EVERY = ["umq", "micromsg", "fmqp", "mqtt", "sabc", "mqtt-ws", "sabc-ws"]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub for anonymous clients that may do little."""
    config = tmp_path_factory.mktemp("strict") / "polywire.toml"
    text = "[listen]\n" + "".join(f'{key} = "{address}"\n' for key, address in LISTEN.items())
    config.write_text(text + OPEN, encoding="utf-8")
    with running_hub(config=config) as hub:
        yield hub


def check_denied(hub: HubProcess, kind: str, action: str, channel: str) -> None:
    """Somebody may not do this: there is a line about it, and it is counted."""
    protocol = kind.partition("-")[0]
    hub.wait_for_log(f"over {protocol} may not {action} {channel!r}")
    assert hub.metric(f'polywire_denied_total{{action="{action}",protocol="{protocol}"}}') >= 1
    assert hub.metric(f'polywire_dropped_total{{protocol="{protocol}",reason="forbidden"}}') >= 1


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    ("action", "channel"), [("publish", "secret/p"), ("subscribe", "secret/s"), ("subscribe", "queue/secret")]
)
@pytest.mark.rule("UMQ-163", "SABC-140", "MQTT-203", "MQTT-204", "MICROMSG-195", "FMQP-79")
def test_what_is_denied_on_a_channel_is_logged_and_counted(
    strict: HubProcess, kind: str, action: str, channel: str
) -> None:
    name = f"{channel}-{kind}"
    with speak(kind, strict.addresses) as client:
        outcome(client.subscribe, name) if action == "subscribe" else outcome(client.publish, name, b"x")
        check_denied(strict, kind, action, name)


@pytest.mark.parametrize("kind", ["umq", "sabc", "sabc-ws"])
@pytest.mark.parametrize("action", ["call", "serve"])
@pytest.mark.rule("UMQ-163", "SABC-140")
def test_what_is_denied_on_a_service_is_logged_and_counted(strict: HubProcess, kind: str, action: str) -> None:
    name = f"secret-{kind}"
    with speak(kind, strict.addresses) as client:
        told = outcome(client.call, name, "Find", b"") if action == "call" else outcome(client.serve, name)
        assert told == FORBIDDEN[kind]
        check_denied(strict, kind, action, name)


@pytest.mark.parametrize("kind", ["mqtt", "mqtt-ws"])
@pytest.mark.rule("MQTTRPC-112")
def test_a_denied_call_over_mqtt_is_logged_and_counted(strict: HubProcess, kind: str) -> None:
    with speak("sabc", strict.addresses) as service, speak(kind, strict.addresses) as client:
        service.serve("near")
        assert outcome(client.call, "near", "Find", b"") == "401"
        check_denied(strict, kind, "call", "near")


@pytest.mark.parametrize("kind", ["mqtt", "mqtt-ws"])
@pytest.mark.rule("MQTTRPC-112")
def test_a_denied_answer_over_mqtt_is_logged_and_counted(strict: HubProcess, kind: str) -> None:
    with speak(kind, strict.addresses) as service, speak("sabc", strict.addresses) as client:
        service.serve("far")
        client.begin_call("far", "Find", b"")
        service.answer(lambda *_: b"here")
        check_denied(strict, kind, "serve", "far")


@pytest.mark.parametrize(
    ("frame", "action", "channel"),
    [
        (Subscription("secret/watched", FEEDBACK), "subscribe", "secret/watched"),
        (Publication("secret/will", b"x", LAST_WILL), "publish", "secret/will"),
        (Publication("secret/cache", b"", CACHE), "publish", "secret/cache"),
        (Publication("$/signals/stop", b"x"), "signal", "$/signals/stop"),
    ],
    ids=["watch", "will", "clear", "signal"],
)
@pytest.mark.rule("FMQP-79")
def test_what_else_is_denied_over_fmqp_is_logged_and_counted(
    strict: HubProcess, frame: Frame, action: str, channel: str
) -> None:
    with speak("fmqp", strict.addresses) as client:
        client.wire.send(encode_fmqp(frame))
        check_denied(strict, "fmqp", action, channel)


def test_a_client_that_asks_again_and_again_is_logged_once_in_a_while(strict: HubProcess) -> None:
    with speak("sabc", strict.addresses) as client:
        for _ in range(20):
            assert outcome(client.subscribe, "secret/again") == "403"
        strict.wait_for_log("may not subscribe 'secret/again'")
    assert sum("'secret/again'" in line for line in strict.errors) <= 2
