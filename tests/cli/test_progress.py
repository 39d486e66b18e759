"""The bar of long commands."""

import io
import sys

import pytest

from polywire.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("total", [10, None])
def test_a_terminal_sees_a_bar_with_words(monkeypatch: pytest.MonkeyPatch, total: int | None) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress("counting [x]", total) as advance:
        advance(10, "10 rows")
    assert "counting [x]" in terminal.getvalue()
    assert "10 rows" in terminal.getvalue()


def test_what_is_no_terminal_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("counting", 10) as advance:
        advance(5, "5 rows")
    assert capsys.readouterr() == ("", "")
