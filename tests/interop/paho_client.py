"""Eclipse Paho, an MQTT client that is not ours, with waiting for whatever it was told to do."""

import queue
import threading
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.hub_process import HubProcess

SECONDS = 20.0
TRANSPORTS = ["tcp", "websockets"]


class Paho:
    """A connected client. ``present``: the hub had a session for it."""

    def __init__(
        self,
        hub: HubProcess,
        transport: str = "tcp",
        client_id: str = "",
        *,
        clean: bool = True,
        will: tuple[str, bytes, int, bool] | None = None,
        keep_alive: int = 60,
        ca: str | None = None,
    ) -> None:
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=clean,
            protocol=paho.MQTTv311,
            transport="websockets" if transport == "websockets" else "tcp",
            reconnect_on_failure=False,
        )
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.logged: queue.Queue[str] = queue.Queue()
        self._granted: queue.Queue[int] = queue.Queue()
        self._ready = threading.Event()
        self._gone = threading.Event()
        self.present = False
        self._client.on_connect = self._connected
        self._client.on_disconnect = lambda *_: self._gone.set()
        self._client.on_message = lambda _client, _data, message: self.messages.put(message)
        self._client.on_subscribe = self._subscribed
        self._client.on_log = lambda _client, _data, _level, text: self.logged.put(text)
        if will is not None:
            self._client.will_set(*will)
        if ca is not None:
            self._client.tls_set(ca_certs=ca)
        host = "127.0.0.1" if ca is None else "localhost"
        if transport == "websockets":
            self._client.ws_set_options(path="/mqtt")
        self._client.connect(host, hub.port("mqtt_ws" if transport == "websockets" else "mqtt"), keep_alive)
        self._client.loop_start()
        assert self._ready.wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._gone.is_set():
            self._client.disconnect()
            assert self._gone.wait(SECONDS)
        self._client.loop_stop()

    def subscribe(self, pattern: str, qos: int) -> int:
        """Subscribe; the QoS that was granted."""
        self._client.subscribe(pattern, qos)
        return self._granted.get(timeout=SECONDS)

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """Publish, and wait until the whole flow of that QoS is done."""
        info = self._client.publish(topic, payload, qos, retain)
        info.wait_for_publish(SECONDS)
        assert info.is_published()

    def receive(self) -> tuple[str, bytes, int, bool]:
        """Topic, payload, QoS and retained flag of the next message."""
        message = self.messages.get(timeout=SECONDS)
        return message.topic, bytes(message.payload), message.qos, message.retain

    def wait_for_log(self, words: str) -> None:
        """Wait until Paho logs something with these words."""
        while words not in self.logged.get(timeout=SECONDS):
            pass

    def vanish(self) -> None:
        """Lose the connection without a DISCONNECT."""
        connection = self._client.socket()
        assert connection is not None
        self._client.loop_stop()
        connection.close()
        self._gone.set()

    def _connected(
        self, _client: object, _data: object, flags: paho.ConnectFlags, reason: Any, _properties: Any
    ) -> None:
        assert not reason.is_failure
        self.present = flags.session_present
        self._ready.set()

    def _subscribed(self, _client: object, _data: object, _number: int, codes: list[Any], _properties: Any) -> None:
        for code in codes:
            self._granted.put(code.value)
