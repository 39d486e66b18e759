"""docs/configuration.md and examples/polywire.toml say what the structs say."""

import re
import shutil
from pathlib import Path

from polywire.security.users import make_user, put_user
from polywire.server.config import Config, Loaded, load
from polywire.server.config.schema import root
from tests.docs.configuration_tables import PAGE, page_with_tables
from tests.server.certificates import Authority, public_keys

EXAMPLE = Path(__file__).parents[2] / "examples" / "polywire.toml"


def everything_on(folder: Path) -> Path:
    """A copy of the example in which nothing is left commented out, and the files it names beside it."""
    text = re.sub(r"^#(?=\S)", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    path = folder / "polywire.toml"
    path.write_text(text, encoding="utf-8")
    authority = Authority(folder)
    shutil.copy(authority.issue("hub"), folder / "hub.key")
    shutil.copy(authority.issue("node"), folder / "node.key")
    shutil.copy(folder / "node.key", folder / "node.pem")
    for name in ("clients.pem", "nats.pem"):
        shutil.copy(authority.root, folder / name)
    (folder / "hub-1.creds").touch()
    (folder / "keys.json").write_text(public_keys())
    put_user(folder / "polywire.users", make_user("ann", None))
    return path


def test_the_tables_are_those_of_the_structs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_tables(page), "run: make docs"


def test_the_tables_are_not_lost() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for table in root().walk():
        for key in table.keys:
            assert f"| `{key}` |" in page


def test_the_example_is_the_defaults() -> None:
    loaded = load(EXAMPLE)
    shown = {setting.key: setting.shown for setting in loaded.settings()}
    shown["journal.path"] = "journal"  # relative to the example's folder
    assert shown == {setting.key: setting.shown for setting in Loaded(Config()).settings()}
    assert loaded.problems() == []
    assert loaded.config.listen == Config().listen


def test_the_example_with_everything_on_has_no_problems(tmp_path: Path) -> None:
    assert load(everything_on(tmp_path)).problems() == []


def test_the_example_names_every_key_but_one_that_excludes_another(tmp_path: Path) -> None:
    loaded = load(everything_on(tmp_path))
    written = {re.sub(r"\[\d+\]", "", setting.key) for setting in loaded.settings() if setting.origin.kind == "file"}
    known = {".".join((*table.path, key)) for table in root().walk() for key in table.keys}
    assert known - written == {"auth.jwt.key"}


def test_every_key_of_the_example_is_found_on_its_line(tmp_path: Path) -> None:
    path = everything_on(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    for setting in load(path).settings():
        if setting.origin.kind == "file" and setting.key != "auth.groups":
            assert lines[setting.origin.line - 1].startswith(setting.key.rpartition(".")[2] + " =")
