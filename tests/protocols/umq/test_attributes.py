import pytest

from polywire.protocols.umq import (
    Attachment,
    AttachmentError,
    Attributes,
    Fatal,
    RemoteProtocolError,
    SetAttribute,
    UnsetAttribute,
)


@pytest.mark.rule("UMQ-108", "UMQ-69")
def test_the_newest_value_is_kept_until_it_is_unset() -> None:
    attributes = Attributes()
    attributes.set(SetAttribute("key", "old"))
    attributes.set(SetAttribute("key", "new"))
    attributes.set(SetAttribute("other", ""))
    assert {name: attributes[name].value for name in attributes} == {"key": "new", "other": ""}
    attributes.unset(UnsetAttribute("key"))
    assert list(attributes) == ["other"]
    assert "key" not in attributes
    assert attributes.get("key") is None


@pytest.mark.rule("UMQ-69")
def test_unsetting_what_is_not_set_changes_nothing() -> None:
    attributes = Attributes()
    attributes.set(SetAttribute("key", "value"))
    attributes.unset(UnsetAttribute("other"))
    assert list(attributes) == ["key"]


@pytest.mark.rule("UMQ-67")
def test_attachments_are_part_of_the_value() -> None:
    attributes = Attributes()
    attributes.set(SetAttribute("key", "value", 2, 5))
    assert list(attributes["key"].attachments) == [None, None]
    complete = [attributes["key"].complete]
    for index, body in enumerate((b"one", b"two")):
        assert attributes.fill(Attachment(body, 5, index))
        complete.append(attributes["key"].complete)
    assert list(attributes["key"].attachments) == [b"one", b"two"]
    assert complete == [False, False, True]
    assert not attributes.fill(Attachment(b"three", 6, 0))


@pytest.mark.rule("UMQ-67", "UMQ-88")
def test_a_failed_attachment_leaves_its_error_in_the_value() -> None:
    attributes = Attributes()
    attributes.set(SetAttribute("key", "value", 2, 1))
    failed = AttachmentError("gone", 1, 0)
    attributes.fill(failed)
    attributes.fill(Attachment(b"two", 1, 1))
    assert attributes["key"].attachments == (failed, b"two")
    assert not attributes["key"].complete


@pytest.mark.rule("UMQ-108", "UMQ-67")
def test_attachments_of_a_replaced_value_go_nowhere() -> None:
    attributes = Attributes()
    attributes.set(SetAttribute("key", "old", 1, 1))
    attributes.set(SetAttribute("key", "new", 1, 2))
    assert not attributes.fill(Attachment(b"late", 1, 0))
    assert attributes.fill(Attachment(b"x", 2, 0))
    assert attributes["key"].attachments == (b"x",)
    attributes.set(SetAttribute("gone", "", 1, 3))
    attributes.unset(UnsetAttribute("gone"))
    assert not attributes.fill(Attachment(b"late", 3, 0))


def over(caught: pytest.ExceptionInfo[RemoteProtocolError]) -> None:
    assert caught.value.rule == "UMQ-136"
    assert isinstance(caught.value.reply, Fatal)
    assert caught.value.reply.code == 9


@pytest.mark.rule("UMQ-136")
def test_attributes_are_limited_in_number() -> None:
    attributes = Attributes(limit=1)
    attributes.set(SetAttribute("a", "1"))
    attributes.set(SetAttribute("a", "2"))
    with pytest.raises(RemoteProtocolError) as caught:
        attributes.set(SetAttribute("b", "1"))
    over(caught)
    assert list(attributes) == ["a"]


@pytest.mark.rule("UMQ-136")
def test_attributes_are_limited_in_size() -> None:
    attributes = Attributes(max_size=10)
    attributes.set(SetAttribute("a", "x" * 7, 2, 1))
    with pytest.raises(RemoteProtocolError) as caught:
        attributes.fill(Attachment(b"xx", 1, 0))
    over(caught)
    attributes = Attributes(max_size=10)
    attributes.set(SetAttribute("a", "x" * 9))
    attributes.set(SetAttribute("a", "y" * 9))
    with pytest.raises(RemoteProtocolError) as caught:
        attributes.set(SetAttribute("a", "x" * 10))
    over(caught)
    assert attributes["a"].value == "y" * 9


@pytest.mark.rule("UMQ-136")
def test_the_size_is_given_back() -> None:
    attributes = Attributes()
    attributes.set(SetAttribute("a", "x", 3, 1))
    attributes.fill(Attachment(b"12345", 1, 0))
    attributes.fill(AttachmentError("gone", 1, 1))
    assert attributes.size == 1 + 1 + 5 + 4 + 1
    attributes.unset(UnsetAttribute("a"))
    assert attributes.size == 0
