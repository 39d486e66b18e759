"""Where each key stands."""

import textwrap

from hypothesis import given
from hypothesis import strategies as st

from polywire.server.config import lines
from polywire.server.config.lines import key_lines

TEXT = textwrap.dedent('''\
    # a comment
    top = 1
    "quoted.key".inner = 2

    [limits]   # another
    outbox = [
      1,
      { a = 1 },
    ]
    text = """
    [journal]
    path = 1
    """
    after = 3
    [a.b]
    c.d = 4
    [[access]]
    user = "x"
    [[access]]
    user = "y"
    [access.more]
    z = 5
    inline = { p = 1, q = { r = 2 } }
''')


def test_every_key_has_its_line_whatever_stands_before_it() -> None:
    found = key_lines(TEXT)
    assert found["top",] == 2
    assert found["quoted.key", "inner"] == 3
    assert found["limits",] == 5
    assert found["limits", "outbox"] == 6
    assert found["limits", "outbox", 1, "a"] == 6
    assert found["limits", "text"] == 10
    assert ("journal",) not in found
    assert found["limits", "after"] == 14
    assert found["a",] == found["a", "b"] == 15
    assert found["a", "b", "c", "d"] == 16
    assert found["access",] == found["access", 0] == 17
    assert found["access", 0, "user"] == 18
    assert found["access", 1] == 19
    assert found["access", 1, "user"] == 20
    assert found["access", 1, "more"] == 21
    assert found["access", 1, "more", "z"] == 22
    assert found["access", 1, "more", "inline", "q", "r"] == 23


def test_lines_may_end_the_way_windows_ends_them() -> None:
    assert key_lines(TEXT.replace("\n", "\r\n")) == key_lines(TEXT)


def test_an_array_of_tables_below_another_counts_for_each_anew() -> None:
    found = key_lines("[[a]]\n[[a.b]]\nx=1\n[[a.b]]\nx=2\n[[a]]\n[[a.b]]\nx=3\n")
    assert found["a", 0, "b", 1, "x"] == 5
    assert found["a", 1, "b", 0, "x"] == 8


def test_a_statement_too_long_to_look_into_only_costs_the_lines_behind_it() -> None:
    found = key_lines("a = 1\nb = [\n" + "1,\n" * lines.LONGEST_STATEMENT + "]\nc = 2\n")
    assert found["a",] == 1
    assert ("c",) not in found


@given(st.lists(st.sampled_from(["v = 1", "# [x]", "", "w = '''\n[y]\n'''", "u = [\n'a',\n]"]), max_size=6))
def test_a_key_is_found_behind_anything(before: list[str]) -> None:
    # Each statement gets a table of its own, so that the same key may come again.
    text = "".join(f"[t{index}]\n{statement}\n" for index, statement in enumerate(before))
    assert key_lines(f"{text}[limits]\noutbox = 1")["limits", "outbox"] == text.count("\n") + 2
