"""Method names in all their forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.mqttrpc.methods import MethodName, parse_type_url


@pytest.mark.rule("MQTTRPC-50", "MQTTRPC-06")
@pytest.mark.parametrize(
    ("type_url", "name"),
    [
        ("SayHello", MethodName(None, "SayHello")),
        ("/SayHello", MethodName(None, "SayHello")),
        ("package.Service/SayHello", MethodName("package.Service", "SayHello")),
        ("Service/SayHello", MethodName("Service", "SayHello")),
        ("/package.Service/SayHello", MethodName("package.Service", "SayHello")),
        ("say_hello2", MethodName(None, "say_hello2")),
    ],
)
def test_every_form_names_the_method(type_url: str, name: MethodName) -> None:
    assert parse_type_url(type_url) == name


@pytest.mark.rule("MQTTRPC-50")
@pytest.mark.parametrize(
    "type_url",
    ["", "/", "//SayHello", "SayHello/", "a.B/", "a..B/C", ".a/C", "a/b/C", "package.Method", "Say Hello", "1st", "Ä"],
)
def test_what_is_no_name_names_no_method(type_url: str) -> None:
    assert parse_type_url(type_url) is None


@given(st.text(max_size=30) | st.text("ab./_1", max_size=10))
@pytest.mark.rule("MQTTRPC-50")
def test_any_text_names_a_method_it_ends_with_or_none(type_url: str) -> None:
    name = parse_type_url(type_url)
    if name is not None:
        assert name.method.isidentifier()
        assert type_url.removeprefix("/") == (name.method if name.service is None else f"{name.service}/{name.method}")
