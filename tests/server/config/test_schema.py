"""The table of keys, and the nearest one to a mistake."""

import pytest

from polywire.server.config.schema import Table, nearest, root


def table_at(path: tuple[str, ...]) -> Table:
    found = root()
    for name in path:
        found = found.tables[name]
    return found


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        (("limts",), "limits"),
        (("slowreader",), "slow_reader"),
        (("limits", "mesage_size"), "limits.message_size"),
        (("limits", "max_message_size"), "limits.message_size"),
        (("listen", "umqp"), "listen.umq"),
        (("journal", "message_size"), "limits.message_size"),
        (("message_size",), "limits.message_size"),
        (("mesage_size",), "limits.message_size"),
        (("auth", "jwt", "algorithm"), "auth.jwt.algorithms"),
        (("access", "action"), "access.actions"),
        (("certificate",), "tls.certificate"),
    ],
)
def test_the_nearest_key_is_the_one_that_was_meant(path: tuple[str, ...], meant: str) -> None:
    assert nearest(path, table_at(path[:-1])) == meant


@pytest.mark.parametrize("path", [(), ("listen",), ("limits",), ("auth", "jwt")])
def test_there_is_always_a_nearest_key(path: tuple[str, ...]) -> None:
    assert nearest((*path, "§"), table_at(path))


def test_every_section_of_the_design_is_there() -> None:
    sections = [
        "listen",
        "tls",
        "journal",
        "limits",
        "auth",
        "access",
        "queues",
        "slow_reader",
        "sabc",
        "fabric",
        "log",
    ]
    assert list(root().tables) == sections
    assert list(root().tables["listen"].keys) == [
        "http",
        "umq",
        "micromsg",
        "fmqp",
        "mqtt",
        "mqtt_ws",
        "sabc",
        "sabc_ws",
        "allowed_origins",
    ]
    assert root().keys == {}
