"""Lines that anybody can cause are written seldom."""

import logging

import pytest

from polywire.server.seldom import SECONDS, Seldom


def test_a_flood_of_events_is_few_lines_that_tell_how_many(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    seldom = Seldom(logging.getLogger("polywire.test"), lambda: now)
    for number in range(100):
        seldom.warn("event %d", number)
    now = SECONDS
    seldom.warn("event %d", 100)
    now = 3 * SECONDS
    seldom.warn("event %d", 101)
    assert caplog.messages == ["event 0", "event 100 (and 99 more like it)", "event 101"]
