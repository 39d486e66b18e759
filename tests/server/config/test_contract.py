"""The contract: whatever is written, it is a Config, or a ConfigError that says where and what."""

import tempfile
from pathlib import Path

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from polywire.server.config import Config, ConfigError, load
from polywire.server.config.schema import root

SECTIONS = sorted({".".join(table.path) for table in root().walk() if table.path})
KEYS = sorted({key for table in root().walk() for key in (*table.keys, *table.tables)})

names = st.sampled_from(KEYS) | st.text("abmq_", min_size=1, max_size=5)
texts = st.sampled_from(
    [
        "off",
        "tcp://127.0.0.1:0",
        "unix:x",
        "ws://[::1]:0/x",
        "16 MiB",
        "30 s",
        "drop",
        "publish",
        "a/{user}/**",
        "HS256",
    ]
) | st.text(max_size=12)
values = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.dates() | st.times() | st.datetimes() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


lines = st.one_of(
    st.sampled_from(SECTIONS).map("[{}]".format),
    st.sampled_from(SECTIONS).map("[[{}]]".format),
    st.builds(
        "{} = {}".format, names, texts.map(repr) | st.integers() | st.sampled_from(["true", "[", "'''", "{a=1}"])
    ),
    st.text("[]{}='\"#\n\\.ax1 \r\té\0", max_size=12),
)
anything = st.lists(lines, max_size=8).map("\n".join) | st.text(max_size=60)


def check(data: bytes, sets: tuple[str, ...] = ()) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "polywire.toml")
        path.write_bytes(data)
        try:
            loaded = load(path, sets)
        except ConfigError as error:
            problems = list(error.problems)
            assert problems
        else:
            assert isinstance(loaded.config, Config)
            assert all(setting.key for setting in loaded.settings())
            assert loaded.again() == loaded
            problems = loaded.problems()
    for problem in problems:
        assert problem.reason
        assert str(problem).isprintable()


@given(anything)
@example("[limits]\n[[limits.x]]\n")
@example("access = [[]]")
@example("auth.groups.a = [[]]")
@example("[auth.groups]\n")
@example('tls.certificate = "\\u001b[31m"')
@example('listen.fmqp = "unix:\\u001b"')
@example('listen.fmqp = "tcp://a\\u009b:1"')
@example('[limits]\n"\\u001b" = 1')
def test_any_text_gives_a_config_or_a_config_error(text: str) -> None:
    check(text.encode(errors="surrogateescape" if text.isascii() else "replace"))


@given(st.binary(max_size=40))
def test_any_octets_give_a_config_or_a_config_error(data: bytes) -> None:
    check(data)


@given(st.dictionaries(st.sampled_from(SECTIONS), st.dictionaries(names, values, max_size=4), max_size=4))
def test_any_toml_gives_a_config_or_a_config_error(tree: dict[str, dict[str, object]]) -> None:
    text = ""
    for section, table in tree.items():
        text += f"[{section}]\n" + "".join(f"{name} = {_toml(value)}\n" for name, value in table.items())
    check(text.encode())


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str | bool):
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    return str(value)


@given(
    st.lists(st.builds("{}.{}={}".format, st.sampled_from(SECTIONS), names, texts) | st.text(max_size=20), max_size=3)
)
def test_any_settings_give_a_config_or_a_config_error(sets: list[str]) -> None:
    check(b"", tuple(sets))
