"""Lines that anybody can cause are written seldom."""

import logging

import pytest

from polywire.server.seldom import MOST_KEYS, SECONDS, Seldom, SeldomEach


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


def test_a_noisy_source_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    each = SeldomEach(logging.getLogger("polywire.test"), lambda: 0.0)
    for source in ("a", "a", "b", "a"):
        each.warn(source, "event of %s", source)
    assert caplog.messages == ["event of a", "event of b"]


def test_sources_are_forgotten_and_a_flood_of_them_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    each = SeldomEach(logging.getLogger("polywire.test"), lambda: now)
    for source in range(3 * MOST_KEYS):
        each.warn(source, "event of %d", source)
    assert len(caplog.messages) == MOST_KEYS + 1
    now = SECONDS
    caplog.clear()
    each.warn("new", "event of %s", "new")
    assert caplog.messages == ["event of new"]
    assert len(each._by_key) == 1
