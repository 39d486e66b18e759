"""Reading the configuration: what it comes to, where from, and what is said about mistakes."""

from pathlib import Path

import pytest

from polywire.errors import PolywireError
from polywire.server.address import Address
from polywire.server.config import Config, ConfigError, load
from polywire.server.config.loader import LARGEST_FILE


def write(folder: Path, text: str) -> Path:
    path = folder / "polywire.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(path: Path | None, *sets: str) -> list[str]:
    """What is said, without the folder of the test."""
    with pytest.raises(ConfigError) as caught:
        load(path, sets)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    folder = f"{path.parent}/" if path else ""
    return [str(problem).replace(folder, "") for problem in caught.value.problems]


def test_nothing_written_is_the_defaults() -> None:
    loaded = load()
    assert loaded.config == Config()
    assert loaded.path is None
    assert loaded.problems() == []
    assert {str(setting.origin) for setting in loaded.settings()} == {"default"}


def test_the_defaults_are_those_of_the_contract() -> None:
    config = Config()
    assert {name: str(address) for name, address in config.listen.addresses().items()} == {
        "http": "http://127.0.0.1:7100",
        "umq": "ws://127.0.0.1:7101/umq",
        "micromsg": "tcp://127.0.0.1:7102",
        "fmqp": "tcp://127.0.0.1:7103",
        "mqtt": "tcp://127.0.0.1:1883",
        "mqtt_ws": "ws://127.0.0.1:7101/mqtt",
        "sabc": "tcp://127.0.0.1:7105",
        "sabc_ws": "ws://127.0.0.1:7101/sabc",
    }
    assert config.limits.message_size == 16 * 1024 * 1024
    assert config.limits.call_time == 30
    assert (config.slow_reader.topics, config.slow_reader.queues, config.slow_reader.replies) == (
        "drop",
        "block",
        "block",
    )
    assert (config.tls, config.auth, config.access, config.fabric.kind) == (None, None, (), "none")


def test_polywire_toml_in_the_working_directory_is_read(tmp_path: Path) -> None:
    write(tmp_path, "[limits]\nconnections = 7\n")
    loaded = load()
    assert loaded.config.limits.connections == 7
    assert str(loaded.origin("limits", "connections")) == "polywire.toml:2"


def test_each_value_knows_where_it_comes_from(tmp_path: Path) -> None:
    path = write(tmp_path, '[limits]\nconnections = 7\noutbox = "1 MiB"\n[auth]\n')
    loaded = load(path, ["limits.outbox=2 MiB", "listen.fmqp=off"])
    origins = {setting.key: str(setting.origin) for setting in loaded.settings()}
    assert origins["limits.connections"] == f"{path}:2"
    assert origins["limits.outbox"] == "--set"
    assert origins["listen.fmqp"] == "--set"
    assert origins["limits.in_flight"] == "default"
    assert origins["auth.anonymous"] == "default"
    assert str(loaded.origin("auth")) == f"{path}:4"


def test_sizes_durations_and_addresses_are_read(tmp_path: Path) -> None:
    text = """
        listen.fmqp = "unix:/run/fmqp.sock"
        listen.mqtt = "off"
        limits = { message_size = "1 MiB", outbox = 5000, idle_time = "2 min", call_time = 1 }
    """
    config = load(write(tmp_path, text)).config
    assert config.listen.addresses()["fmqp"] == Address("unix", path="/run/fmqp.sock")
    assert "mqtt" not in config.listen.addresses()
    assert (config.limits.message_size, config.limits.outbox) == (1048576, 5000)
    assert (config.limits.idle_time, config.limits.call_time) == (120.0, 1.0)


@pytest.mark.parametrize("nothing", ["0", "'0 B'"])
def test_no_limit_of_size_is_written_as_0(tmp_path: Path, nothing: str) -> None:
    assert load(write(tmp_path, f"[journal]\nkeep_size = {nothing}\n")).config.journal.keep_size == 0


def test_how_long_the_journal_is_kept_is_read(tmp_path: Path) -> None:
    text = "[journal]\nkeep_size = '2 GiB'\nkeep_time = '400 d'\nsegment_size = '1 MiB'\nnode = 'hub-1'\n"
    journal = load(write(tmp_path, text)).config.journal
    assert (journal.keep_size, journal.keep_time) == (2 << 30, 400 * 86400.0)
    assert (journal.segment_size, journal.node) == (1 << 20, "hub-1")


def test_relative_paths_start_at_the_file_and_those_of_set_at_the_working_directory(tmp_path: Path) -> None:
    path = write(tmp_path, '[tls]\ncertificate = "hub.pem"\nkey = "/etc/hub.key"\n[listen]\nsabc = "unix:s"\n')
    config = load(path, ["tls.client_ca=ca.pem"]).config
    assert config.tls is not None
    assert config.tls.certificate == tmp_path / "hub.pem"
    assert config.tls.key == Path("/etc/hub.key")
    assert config.tls.client_ca == Path("ca.pem")
    assert str(config.listen.addresses()["sabc"]) == f"unix:{tmp_path}/s"
    assert config.journal.path == Path("journal")


def test_rules_are_read_one_by_one(tmp_path: Path) -> None:
    text = """
        [[access]]
        user = "t"
        protocol = "mqtt"
        actions = "publish"
        channels = "sensors/{user}/**"
        [[access]]
        group = "operators"
        actions = ["publish", "signal"]
        channels = ["**", "$/signals/*"]
        effect = "deny"
    """
    first, second = load(write(tmp_path, text)).config.access
    assert (first.user, first.protocol, first.actions, first.channels) == (
        "t",
        "mqtt",
        ("publish",),
        ("sensors/{user}/**",),
    )
    assert (second.group, second.protocol, second.effect) == ("operators", None, "deny")
    assert second.channels == ("**", "$/signals/*")


def test_a_smaller_message_size_takes_the_one_before_auth_with_it() -> None:
    limits = load(sets=["limits.message_size=2000"]).config.limits
    assert (limits.message_size, limits.message_size_before_auth) == (2000, 2000)


def test_everything_can_be_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, "[limits]\nconnections = 7\n")
    loaded = load(path, ["limits.in_flight=3"])
    assert loaded.again() == loaded
    write(tmp_path, "[limits]\nconnections = 8\n")
    again = loaded.again().config.limits
    assert (again.connections, again.in_flight) == (8, 3)


SIZE = 'bytes, from 4 KiB to 2 GiB, such as 65536 or "64 KiB"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[limts]\n", "1: limts: no such section; did you mean limits?"),
        (
            "\n[limits]\nmesage_size = 1",
            "3: limits.mesage_size: no such key; did you mean limits.message_size?",
        ),
        ("message_size = 1", "1: message_size: no such section; did you mean limits.message_size?"),
        ("[auth.jtw]\n", "1: auth.jtw: no such section; did you mean auth.jwt?"),
        ('[limits]\n"a\\u001Bb" = 1', '2: limits."a\\u001bb": no such key; did you mean'),
        (
            "[[access]]\nactions='publish'\nchannels='a'\n[[access]]\nactoins = 1\nactions='call'\nchannels='x'",
            "5: access[1].actoins: no such key; did you mean access.actions?",
        ),
        ("[limits]\noutbox = true", f"2: limits.outbox: found true, allowed is {SIZE}"),
        ("[limits]\noutbox = 1", f"2: limits.outbox: found 1, allowed is {SIZE}"),
        ("[limits]\noutbox = 1.5", f"2: limits.outbox: found 1.5, allowed is {SIZE}"),
        ("[limits]\noutbox = [1]", f"2: limits.outbox: found a list that begins with 1, allowed is {SIZE}"),
        ("[limits]\noutbox = []", f"2: limits.outbox: found an empty list, allowed is {SIZE}"),
        ("[limits.outbox]", f"1: limits.outbox: found a table, allowed is {SIZE}"),
        (
            "[limits]\noutbox = 'big'",
            f'2: limits.outbox: found "big": this is not a number and a unit; allowed is {SIZE}',
        ),
        ("[limits]\noutbox = 1979-05-27", f"2: limits.outbox: found 1979-05-27, allowed is {SIZE}"),
        ("[limits]\noutbox = 0x" + "f" * 99, f"2: limits.outbox: found a huge number, allowed is {SIZE}"),
        (
            "[limits]\nidle_time = nan",
            (
                "2: limits.idle_time: found nan, allowed is seconds, from 1 s to 86400 s, or 0 for no "
                'limit, such as 30 or "30 s"'
            ),
        ),
        (
            "[limits]\ncall_time = 0",
            '2: limits.call_time: found 0, allowed is seconds, from 0.001 s to 86400 s, such as 30 or "30 s"',
        ),
        ("[limits]\nconnections = 0", "2: limits.connections: found 0, allowed is a whole number from 1 to 1000000"),
        ("limits = 3", "1: limits: found 3, but this is a section: write [limits] and message_size = …"),
        ("fabric = 'none'", '1: fabric: found "none", but this is a section: write [fabric] and kind = …'),
        ("[access]\n", "1: access: found a table, but this is a list of tables: write [[access]]"),
        (
            "[[limits]]\n",
            (
                "1: limits: found a list that begins with a table, but this is a section: write [limits] "
                "and message_size = …"
            ),
        ),
        ("access = [1]", "1: access[0]: found 1, but this is a section: write [[access]] and user = …"),
        ("[journal]\nenabled = 'yes'", '2: journal.enabled: found "yes", allowed is true or false'),
        ("[journal]\nfsync = 'never'", '2: journal.fsync: found "never", allowed is "group", "always" or "os"'),
        ("[journal]\nfsync = []", '2: journal.fsync: found an empty list, allowed is "group", "always" or "os"'),
        ("[journal]\non_failure = 'stop'", '2: journal.on_failure: found "stop", allowed is "refuse" or "continue"'),
        ("[journal]\nkeep_size = false", "2: journal.keep_size: found false, allowed is bytes, from 4 KiB to"),
        (
            "[journal]\nkeep_size = 1",
            "2: journal.keep_size: found 1, allowed is bytes, from 4 KiB to 1048576 GiB, or 0 for",
        ),
        ("[journal]\nsegment_size = 0", "2: journal.segment_size: found 0, allowed is bytes, from 4 KiB to 4 GiB"),
        ("[journal]\nkeep_time = 0.5", "2: journal.keep_time: found 0.5, allowed is seconds, from 1 s to"),
        ("[journal]\npath = ''", '2: journal.path: found "", allowed is the path of a directory'),
        (
            "[journal]\npath = 'a\\u0000'".replace("'", '"'),
            '2: journal.path: found "a\\u0000": the path must not contain control characters; allowed is the path of',
        ),
        ("[listen]\numq = 7101", '2: listen.umq: found 7101, allowed is "ws://…", "wss://…" or "off"'),
        (
            "[listen]\numq = 'tcp://127.0.0.1:1'",
            '2: listen.umq: found "tcp://127.0.0.1:1": tcp is not supported here; allowed is ws:// or wss://, such as ws://127.0.0.1:7101/umq',
        ),
        (
            "[listen]\nhttp = 'tls://127.0.0.1:1'",
            (
                '2: listen.http: found "tls://127.0.0.1:1": tls is not supported here; '
                "allowed is http:// or https://, such as http://127.0.0.1:7100"
            ),
        ),
        ("[tls]\nkey = 'x'", "1: tls: certificate is missing; allowed is the path of a file"),
        ("[auth]\nusers = 1", "2: auth.users: found 1, allowed is the path of a file"),
        (
            "[auth.groups]\na = 'ann'",
            (
                "1: auth.groups: found a table, allowed is names of groups, each with a list of users, "
                'such as operators = ["ann", "bob"]'
            ),
        ),
        ("[auth.groups]\na = ['']", "1: auth.groups: found a table: a name is empty; allowed is names of groups"),
        (
            "[auth.jwt]\nalgorithms = ['none']",
            '2: auth.jwt.algorithms: found a list that begins with "none", allowed is "HS256",',
        ),
        (
            '[auth.jwt]\nalgorithms = "HS256"\nissuer = "a\\nb"',
            '3: auth.jwt.issuer: found "a\\nb": the text must be one line without control characters; allowed is text',
        ),
        (
            "[[access]]\nactions = 'publish'",
            (
                "1: access[0]: channels is missing; allowed is a pattern of channels, such as "
                '"sensors/{user}/**", or a list of them'
            ),
        ),
        (
            "[[access]]\nactions = []\nchannels = 'a'",
            (
                '2: access[0].actions: found an empty list, allowed is "publish", "subscribe", "call", '
                '"serve" or "signal", or a list of them'
            ),
        ),
        (
            "[[access]]\nactions = 'call'\nchannels = 'a/**/b'",
            '3: access[0].channels: found "a/**/b": ** is only allowed at the end; allowed is',
        ),
        (
            "[[access]]\nactions = 'call'\nchannels = 'a/{usr}'",
            '3: access[0].channels: found "a/{usr}": the only name in braces is {user}; allowed is',
        ),
        (
            "[[access]]\nactions = 'call'\nchannels = ''",
            '3: access[0].channels: found "", allowed is a pattern of channels',
        ),
        (
            "[slow_reader]\ntopics = 'wait'",
            '2: slow_reader.topics: found "wait", allowed is "drop", "disconnect" or "block"',
        ),
        (
            "[slow_reader]\nqueues = 'drop'",
            '2: slow_reader.queues: found "drop": a queue loses no message; allowed is "disconnect" or "block"',
        ),
        (
            "[limits]\nmessage_size = 2000\nmessage_size_before_auth = 2001",
            "3: limits.message_size_before_auth: is more than limits.message_size (2000), the limit for all messages",
        ),
        (
            "[limits]\nmessage_size = 20",
            '2: limits.message_size: found 20, allowed is bytes, from 256 B to 1 GiB, such as 65536 or "64 KiB"',
        ),
        (
            "[limits]\nmessage_size_before_auth = 1023",
            "2: limits.message_size_before_auth: found 1023, allowed is bytes, from 1 KiB to 1 GiB",
        ),
        ("[limits\n", "1:8: this is not TOML: expected ']' at the end of a table declaration"),
        ("[limits]\noutbox = \n", "2:10: this is not TOML: invalid value"),
        ("[limits]\noutbox = 1\noutbox = 2\n", "3:11: this is not TOML: cannot overwrite a value"),
        ("a = '''", "1: this is not TOML: "),
        ("a = " + "[" * 5000, " lists or tables are nested too deeply"),
        ("a = " + "9" * 5000, "1: this is not TOML: exceeds the limit"),
    ],
)
def test_every_mistake_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (found,) = problems(write(tmp_path, text))
    assert found.startswith(f"polywire.toml:{said}")


def test_all_mistakes_are_named_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "[limits]\noutbox = 1\nunfinshed = 2\n[journal]\nfsync = 3\n[tls]\n"
    found = problems(write(tmp_path, text), "limits", "listen.umq=7")
    assert [line.split(": ")[:2] for line in found] == [
        ["--set", '"limits" has no =; write it like limits.message_size=1048576'],
        ["polywire.toml:2", "limits.outbox"],
        ["polywire.toml:3", "limits.unfinshed"],
        ["polywire.toml:5", "journal.fsync"],
        ["polywire.toml:6", "tls"],
        ["--set", "listen.umq"],
    ]


def test_a_problem_has_fields_to_act_on(tmp_path: Path) -> None:
    path = write(tmp_path, "[limits]\noutbox = 1\n")
    with pytest.raises(PolywireError) as caught:
        load(path)
    assert isinstance(caught.value, ConfigError)
    (problem,) = caught.value.problems
    assert (problem.key, problem.origin.file, problem.origin.line) == ("limits.outbox", path, 2)
    assert problem.reason.startswith("found 1, allowed is")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path / "hub.toml") == ["hub.toml: there is no such file"]


def test_a_folder_is_not_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert problems(tmp_path / "folder") == ["folder: the file can't be read: Is a directory"]


def test_a_path_no_file_system_has_is_named() -> None:
    assert problems(Path("a\0b"))[0].endswith("the file can't be read: embedded null byte")


def test_a_file_that_is_not_utf8_is_named_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "polywire.toml"
    path.write_bytes(b"[limits]\n# \xff\n")
    assert problems(path) == ["polywire.toml:2:3: this is not TOML: it is not UTF-8"]


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, "#" * (LARGEST_FILE + 1))
    assert problems(path) == [f"polywire.toml: a configuration has at most {LARGEST_FILE} bytes"]


def test_a_socket_that_the_folder_makes_too_long_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, f"[listen]\nfmqp = 'unix:{'a' * 100}'\n")
    assert "the path of a Unix socket has at most 107 bytes" in problems(path)[0]


def test_a_password_is_not_shown() -> None:
    urls = ["nats://hub:secret@host:4222", "nats://token@host", "tls://host"]
    loaded = load(sets=[f"fabric.url={urls}"])
    assert loaded.config.fabric.url == tuple(urls)
    shown = {setting.key: setting for setting in loaded.settings()}
    hidden = ["nats://hub:***@host:4222", "nats://***@host", "tls://host"]
    assert shown["fabric.url"].shown == shown["fabric.url"].value == hidden
