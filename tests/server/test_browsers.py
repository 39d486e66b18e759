"""A browser's pages and a running hub: which of them may open a WebSocket."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, blank_site, chromium, needs_browser
from tests.hub_process import HubProcess, running_hub
from tests.server.test_endings import encrypting

pytestmark = needs_browser

LISTENERS = {"umq": "umq", "mqtt_ws": "mqtt", "sabc_ws": "sabc"}
OPEN = """
    const web = new WebSocket({address!r}, {subprotocol!r});
    return await new Promise(done => {{
        web.onopen = () => {{ done("open " + web.protocol); web.close(); }};
        web.onclose = event => done("closed " + event.code);
    }});
"""
TALK = """
    const web = new WebSocket({address!r}, "umq");
    const heard = [];
    return await new Promise(done => {{
        web.onopen = () => web.send("H1:");
        web.onmessage = event => {{
            heard.push(event.data);
            if (heard.length === 1) web.send('C1:["subscribe","a",7]');
            if (heard.length === 2) web.send('C2:["publish","a","hello"]');
            if (heard.length === 4) web.close(4321, "bye");
        }};
        web.onclose = event => done([...heard, event.code, event.wasClean]);
    }});
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(trust_all=True) as found:
        yield found


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    with blank_site() as port:
        yield port


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


def opened(browser: Browser, page: str, address: str, subprotocol: str) -> object:
    return browser.page(page).run(OPEN.format(address=address, subprotocol=subprotocol))


@pytest.mark.rule("UMQ-164")
@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "other.test"])
def test_a_page_of_another_site_opens_no_websocket(
    hub: HubProcess, browser: Browser, site: int, listener: str, host: str
) -> None:
    page = f"http://{host}:{site}/"
    assert opened(browser, page, hub.addresses[listener], LISTENERS[listener]) == "closed 1006"
    assert "add the origin to listen.allowed_origins" in hub.wait_for_log("may not use this hub")


@pytest.mark.rule("UMQ-164")
def test_a_page_can_not_give_the_hub_a_name_of_its_own(hub: HubProcess, browser: Browser) -> None:
    # The page is the hub's own 404, under a name that resolves to it: the same origin, but no name of the hub.
    port = hub.port("umq")
    assert opened(browser, f"http://rebound.test:{port}/", f"ws://rebound.test:{port}/umq", "umq") == "closed 1006"
    assert opened(browser, f"http://127.0.0.1:{port}/", f"ws://127.0.0.1:{port}/umq", "umq") == "open umq"
    assert opened(browser, f"http://localhost:{port}/", f"ws://localhost:{port}/umq", "umq") == "open umq"


@pytest.mark.rule("UMQ-164", "UMQ-165", "UMQ-166")
def test_a_page_of_an_allowed_site_talks_to_the_hub(browser: Browser, site: int) -> None:
    page = f"http://console.test:{site}"
    with running_hub(f"listen.allowed_origins={page}") as hub:
        for listener, subprotocol in LISTENERS.items():
            assert opened(browser, page, hub.addresses[listener], subprotocol) == f"open {subprotocol}"
        talk = browser.page(page).run(TALK.format(address=hub.addresses["umq"]))
        assert talk == ["W1:", "R1:null", "T7:hello", "R2:null", 4321, True]
        assert opened(browser, f"http://127.0.0.1:{site}", hub.addresses["umq"], "umq") == "closed 1006"


@pytest.mark.rule("UMQ-164")
def test_the_same_holds_for_encrypted_websockets(tmp_path: Path, browser: Browser, site: int) -> None:
    config, _ = encrypting(tmp_path)
    page = f"http://console.test:{site}"
    with running_hub(f"listen.allowed_origins={page}", config=config) as hub:
        for listener, subprotocol in LISTENERS.items():
            assert opened(browser, page, hub.addresses[listener], subprotocol) == f"open {subprotocol}"
            other = f"http://127.0.0.1:{site}"
            assert opened(browser, other, hub.addresses[listener], subprotocol) == "closed 1006"
