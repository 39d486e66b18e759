"""The text of a configuration: where each key is, and ``--set``: any key, any value."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.server.config import ConfigError, Loaded, load
from polywire.server.config import text as text_module
from polywire.server.config.kinds import (
    Choice,
    Choices,
    Count,
    File,
    Flag,
    Groups,
    Listener,
    Origins,
    Patterns,
    Seconds,
    Servers,
    Size,
    Text,
)
from polywire.server.config.schema import Key, root
from polywire.server.config.text import key_lines, parse_setting

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
    found = key_lines("a = 1\nb = [\n" + "1,\n" * text_module.LONGEST_STATEMENT + "]\nc = 2\n")
    assert found["a",] == 1
    assert ("c",) not in found


@given(st.lists(st.sampled_from(["v = 1", "# [x]", "", "w = '''\n[y]\n'''", "u = [\n'a',\n]"]), max_size=6))
def test_a_key_is_found_behind_anything(before: list[str]) -> None:
    # Each statement gets a table of its own, so that the same key may come again.
    text = "".join(f"[t{index}]\n{statement}\n" for index, statement in enumerate(before))
    assert key_lines(f"{text}[limits]\noutbox = 1")["limits", "outbox"] == text.count("\n") + 2


OTHER_THAN_DEFAULT: dict[type, tuple[str, object]] = {
    Flag: ("true", True),
    Count: ("4711", 4711),
    Size: ("5 KiB", "5 KiB"),
    Seconds: ("7 s", "7 s"),
    Text: ("some words", "some words"),
    File: ("some/file", "some/file"),
    Listener: ("off", "off"),
    Groups: ('{a = ["b"]}', {"a": ["b"]}),
    Patterns: ("a/**", ["a/**"]),
    Origins: ("https://a.example", ["https://a.example"]),
}
NEEDED = {"tls": ["tls.certificate=x"], "auth.jwt": ["auth.jwt.algorithms=HS256"]}
KEYS = [(".".join(table.path), key) for table in root().walk() for key in table.keys.values() if not table.many]


def setting(loaded: Loaded, key: str) -> tuple[object, str]:
    (found,) = [(each.shown, str(each.origin)) for each in loaded.settings() if each.key == key]
    return found


def other_than_default(key: Key) -> tuple[str, object]:
    """What to write after the =, and how it is shown."""
    if isinstance(key.kind, Choice):
        return key.kind.words[-1], key.kind.words[-1]
    if isinstance(key.kind, Choices):
        return key.kind.words[-1], [key.kind.words[-1]]
    if isinstance(key.kind, Servers):
        url = f"{key.kind.schemes[0]}://host"
        return url, [url]
    if isinstance(key.kind, Count) and key.kind.most < 4711:
        return str(key.kind.most), key.kind.most
    return OTHER_THAN_DEFAULT[type(key.kind)]


@pytest.mark.parametrize(("section", "key"), KEYS, ids=[f"{section}.{key.name}" for section, key in KEYS])
def test_any_key_can_be_set(section: str, key: Key) -> None:
    text, shown = other_than_default(key)
    name = f"{section}.{key.name}"
    assert setting(load(sets=[*NEEDED.get(section, []), f"{name}={text}"]), name) == (shown, "--set")


def test_rules_can_be_set_as_a_whole() -> None:
    loaded = load(sets=['access=[{actions=["publish"], channels="a/**"}]'])
    assert loaded.config.access[0].channels == ("a/**",)
    assert setting(loaded, "access[0].actions") == (["publish"], "--set")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a.b=1", {"a": {"b": 1}}),
        ("a.b = 1", {"a": {"b": 1}}),
        ("a.b=true", {"a": {"b": True}}),
        ("a.b='1'", {"a": {"b": "1"}}),
        ("a.b=[1, 2]", {"a": {"b": [1, 2]}}),
        ("a.b=words", {"a": {"b": "words"}}),
        ("a.b=16 MiB", {"a": {"b": "16 MiB"}}),
        ("a.b=", {"a": {"b": ""}}),
        ("a.b=x=y", {"a": {"b": "x=y"}}),
        ("a.b=tcp://127.0.0.1:0", {"a": {"b": "tcp://127.0.0.1:0"}}),
        ('a."b.c"=1', {"a": {"b.c": 1}}),
        ("a.b=1\nc = 2", {"a": {"b": "1\nc = 2"}}),
        ("a={b=1}", {"a": {"b": 1}}),
        ("a.b=" + "[" * 5000, {"a": {"b": "[" * 5000}}),
    ],
)
def test_a_value_is_toml_and_otherwise_a_string(text: str, tree: dict[str, object]) -> None:
    assert parse_setting(text) == tree


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limits.outbox", '--set: "limits.outbox" has no =; write it like limits.message_size=1048576'),
        ("=1", '--set: "" is not a key; write it like limits.message_size=1048576'),
        ("a b=1", '--set: "a b" is not a key; write it like limits.message_size=1048576'),
        ("a..b=1", '--set: "a..b" is not a key; write it like limits.message_size=1048576'),
        ("#=1", '--set: "#" is not a key; write it like limits.message_size=1048576'),
        ("a\nb=1", '--set: "a\\nb" is not a key; write it like limits.message_size=1048576'),
        ("limits.outbox=\udcff", '--set: "limits.outbox=\\udcff" is not UTF-8'),
        ("limits.mesage_size=1", "--set: limits.mesage_size: no such key; did you mean limits.message_size?"),
        ("limits=1", "--set: limits: found 1, but this is a section: write [limits] and message_size = …"),
        ("limits.outbox.x=1", "--set: limits.outbox: found a table, allowed is bytes, from 4 KiB to 2 GiB, such as"),
    ],
)
def test_what_is_wrong_with_a_setting_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(sets=[text])
    assert str(caught.value).startswith(said)


def test_the_last_setting_of_a_key_counts() -> None:
    assert load(sets=["limits.in_flight=1", "limits.in_flight=2"]).config.limits.in_flight == 2


def test_a_table_is_merged_into_what_there_is() -> None:
    limits = load(sets=["limits.in_flight=1", "limits={unfinished=2}"]).config.limits
    assert (limits.in_flight, limits.unfinished) == (1, 2)
