"""The live view of ``sub``, without a terminal."""

import io

from rich.console import Console

from polywire.cli import view as view_module
from polywire.cli.view import View
from polywire.client.message import Message


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def drawn(view: View, width: int = 80, height: int = 24) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=width, height=height, color_system=None, markup=False).print(view)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_it_shows_channels_by_their_count_and_the_last_messages() -> None:
    clock = Clock()
    view = View("home/* at mqtt://h:1", clock=clock, wall=lambda: 0.0)
    view.put(Message("home/door", b"open"))
    clock.now += 5
    for number in range(3):
        view.put(Message("home/[lamp]", str(number).encode()))
    view.sample()
    lines = drawn(view)
    assert lines[0] == "● home/* at mqtt://h:1"
    assert lines[1].startswith("  4 messages  1/s  7 B")
    assert lines[3].split() == ["home/[lamp]", "3", "3", "B", "now"]
    assert lines[4].split() == ["home/door", "1", "4", "B", "5", "s", "ago"]
    assert [line.split()[-1] for line in lines[6:]] == ["open", "0", "1", "2"]


def test_it_never_is_higher_than_the_terminal() -> None:
    view = View("x")
    for number in range(500):
        view.put(Message(f"channel/{number}", b"\n" * 300))
    assert len(drawn(view, width=40, height=20)) <= 20


def test_a_lost_connection_is_shown() -> None:
    assert "disconnected" in drawn(View("x", lambda: False))[0]


def test_channels_are_bounded() -> None:
    view = View("x")
    for number in range(view_module.CHANNELS + 50):
        view.put(Message(str(number), b""))
    assert len(view._channels) <= view_module.CHANNELS + 1
    assert view._channels[view_module.OTHERS].count == 50
