"""The FMQP client's way to end a broker."""

import pytest

from polywire.protocols.fmqp.client import connect
from tests.client.loops import run
from tests.hub_process import running_hub


@pytest.mark.parametrize(("now", "told"), [(False, "stopped"), (True, "stopped at once")])
def test_a_client_may_end_the_hub_softly_or_at_once(told: str, *, now: bool) -> None:
    with running_hub() as hub:

        async def main() -> None:
            async with connect(hub.addresses["fmqp"]) as client:
                await client.stop_broker(now=now)

        run(main)
        assert hub.process.wait(20) == 0
        assert hub.wait_for_log("stopped").rstrip().endswith(f": {told}")
