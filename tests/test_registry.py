"""Which protocols there are, polywire's own and those of other packages."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import polywire.registry
from polywire.registry import (
    HTTP_CODE,
    OTHER_CODES,
    Listener,
    Protocol,
    RegistryError,
    built_in,
    built_in_names,
    by_listener,
    by_name,
    by_scheme,
    gather,
    names,
    protocols,
)

PACKAGE = """
from polywire.registry import Listener, Protocol

PROTOCOL = Protocol({})
"""
LINE: dict[str, Any] = {
    "name": "line",
    "title": "Lines",
    "code": 64,
    "package": "polywire_line",
    "listeners": (Listener(key="line", about="Lines."),),
    "session": "session:LineSession",
    "schemes": {"line": "tcp"},
    "port": 7106,
    "bus": "bus:connect",
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a module with a descriptor, and the entry point of a package that has it."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(module: str, text: str | None = None, **changes: Any) -> EntryPoint:
        described = ", ".join(f"{name}={value!r}" for name, value in {**LINE, "package": module, **changes}.items())
        (tmp_path / f"{module}.py").write_text(PACKAGE.format(described) if text is None else text, encoding="utf-8")
        about = tmp_path / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[polywire.protocols]\nany = {module}:PROTOCOL\n")
        monkeypatch.delitem(sys.modules, module, raising=False)
        return EntryPoint("any", f"{module}:PROTOCOL", "polywire.protocols")

    return make


def test_protocols_come_in_the_order_of_their_codes() -> None:
    assert [each.name for each in built_in()] == ["umq", "micromsg", "fmqp", "mqtt", "mqttrpc", "sabc"]
    assert [each.code for each in built_in()] == list(range(6))
    assert built_in_names()[HTTP_CODE] == "http"
    assert protocols()[: len(built_in())] == built_in()
    assert names()[: len(built_in_names())] == built_in_names()


def test_a_protocol_is_found_by_its_name_its_listeners_and_its_schemes() -> None:
    for each in built_in():
        assert by_name(each.name) is each
        for listener in each.listeners:
            assert by_listener(listener.key) == (each, listener)
        for scheme in each.schemes:
            assert by_scheme(scheme) is each
    assert by_scheme("amqp") is None
    with pytest.raises(RegistryError, match="there is no protocol 'amqp'; there is umq, micromsg"):
        by_name("amqp")
    with pytest.raises(RegistryError, match="there is no listener 'amqp'"):
        by_listener("amqp")


@pytest.mark.parametrize("protocol", built_in(), ids=lambda each: each.name)
def test_everything_a_descriptor_names_is_there(protocol: Protocol) -> None:
    for reference in (protocol.session, protocol.bus, protocol.decoder):
        assert not reference or callable(protocol.load(reference))
    folder = Path(sys.modules[protocol.package].__file__ or "").parent
    assert [name for name in protocol.hot if not (folder / f"{name}.py").exists()] == []
    assert len(set(protocol.hot)) == len(protocol.hot)


def test_descriptors_load_nothing_of_what_they_describe() -> None:
    script = """
import sys, polywire.registry
assert len(polywire.registry.built_in()) == 6
assert polywire.registry.by_scheme("fmqps").name == "fmqp"
print(*sorted(name for name in sys.modules if name.partition(".")[0] in {"polywire", "asyncio", "msgspec", "librt"}))
print("importlib.metadata" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    loaded, metadata = done.stdout.splitlines()
    described = {each.package for each in built_in()}
    own = {"polywire", "polywire.errors", "polywire.process", "polywire.registry"}
    assert set(loaded.split()) == {*described, *own, "polywire.protocols"}
    assert metadata == "False"  # nobody else's protocol was asked for


def test_importing_polywire_does_not_load_the_registry() -> None:
    script = "import sys, polywire; sys.exit('polywire.registry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0  # noqa: S603 - ours


def test_a_protocol_of_another_package_comes_after_polywires_own(install: Any) -> None:
    found, unusable = gather(built_in(), [install("some_line")])
    assert unusable == ()
    assert found[:-1] == built_in()
    assert (found[-1].name, found[-1].code) == ("line", 64)
    assert polywire.registry._names(found) == (*built_in_names(), "line")


def test_an_installed_package_is_found_and_reported_if_it_is_broken(install: Any, tmp_path: Path) -> None:
    install("some_line")
    install("bad_line", text="import missing_module_of_bad_line")
    script = """
from polywire.registry import by_name, names, unusable
print(by_name("line").package, names()[-1])
print(*unusable())
"""
    done = subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{tmp_path}:{Path(polywire.registry.__file__).parents[1]}"},
        capture_output=True,
        text=True,
        check=True,
    )
    found, reported = done.stdout.splitlines()
    assert found == "some_line line"
    assert reported == (
        "the protocol of bad-line can't be used: bad_line:PROTOCOL can't be loaded: "
        "ModuleNotFoundError: No module named 'missing_module_of_bad_line'"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "fmqp"}, "the name 'fmqp' is claimed by polywire and some_line"),
        ({"name": "http"}, "the name 'http' is claimed by polywire and some_line"),
        ({"listeners": (Listener(key="mqtt_ws", about="x"),)}, "the listener 'mqtt_ws' is claimed by polywire"),
        ({"schemes": {"umqs": "tls"}}, "the scheme 'umqs' is claimed by polywire and some_line"),
        ({"code": 5}, "the code 5 is not from 64 to 127"),
        ({"code": 128}, "the code 128 is not from 64 to 127"),
        ({"name": "Line"}, "'Line' is not a name in lower case, such as 'line' or 'line_ws'"),
        ({"schemes": {"tcp": "tcp"}}, "'tcp' can't be the scheme of a URL"),
        ({"schemes": {"line": "udp"}}, "'udp' is not a transport; there is tcp, tls, unix, ws, wss"),
        ({"listeners": (Listener(key="x", about="x", transports=()),)}, "the listener 'x' has transports other than"),
        ({"can": frozenset({"fly"})}, "'fly' is not a feature; there is publish, subscribe"),
        ({"session": ""}, "it has listeners and no session"),
        ({"bus": ""}, "it has schemes, but no bus or no port"),
    ],
)  # fmt: skip
def test_a_descriptor_that_can_not_be_is_left_out_and_reported(install: Any, changes: Any, reason: str) -> None:
    found, (unusable,) = gather(built_in(), [install("some_line", **changes)])
    assert found == built_in()
    assert unusable.package == "some_line"
    assert unusable.reason.startswith(reason)


@pytest.mark.parametrize("text", ["raise SystemError('no')", "PROTOCOL = 5", "", "def"])
def test_a_package_that_has_no_descriptor_is_left_out_and_reported(install: Any, text: str) -> None:
    found, (unusable,) = gather(built_in(), [install("some_line", text=text)])
    assert found == built_in()
    assert "some_line:PROTOCOL" in unusable.reason


@pytest.mark.parametrize(
    ("changes", "claimed"),
    [
        ({"code": 65, "listeners": (), "schemes": {}}, "the name 'line'"),
        ({"name": "other", "listeners": (), "schemes": {}}, "the code 64"),
        ({"name": "other", "code": 65, "schemes": {}}, "the listener 'line'"),
        ({"name": "other", "code": 65, "listeners": ()}, "the scheme 'line'"),
    ],
)
def test_of_two_packages_that_want_the_same_neither_is_used(install: Any, changes: Any, claimed: str) -> None:
    entries = [
        install("first"),
        install("second", **changes),
        install("third", name="x", code=70, listeners=(), schemes={}),
    ]
    for order in (entries, entries[::-1]):
        found, unusable = gather(built_in(), order)
        assert [each.name for each in found[6:]] == ["x"]
        assert [each.package for each in unusable] == ["first", "second"]
        assert {each.reason for each in unusable} == {f"{claimed} is claimed by first and second"}


def test_a_reference_that_can_not_be_loaded_names_its_package(install: Any) -> None:
    (*_, line), _ = gather(built_in(), [install("some_line")])
    with pytest.raises(
        RegistryError, match="some_line: 'session:LineSession' of line can't be loaded: Module"
    ) as caught:
        line.load(line.session)
    assert caught.value.package == "some_line"


def test_others_have_enough_codes_that_fit_the_journal() -> None:
    assert OTHER_CODES.start > max(each.code for each in built_in())
    assert len(built_in_names()) + len(OTHER_CODES) < 127
