"""What the wheel and the sdist hold. That they install and work in empty environments is shown by ``make package``."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import polywire
from polywire.process import hot_modules

ROOT = Path(__file__).parents[1]
MADE_BY_SETUPTOOLS = {"PKG-INFO", "setup.cfg", "src/polywire.egg-info/SOURCES.txt"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout to build in, with what compiling leaves behind."""
    copy = tmp_path_factory.mktemp("checkout") / "polywire"
    for name in checked_in():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    (copy / "src/polywire/hub/hub.cpython-311-x86_64-linux-gnu.so").touch()
    (copy / "build").mkdir()
    (copy / "build/__native_hub.c").touch()
    return copy


@pytest.fixture(scope="module")
def dist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and the wheel that was made from it without compiling anything."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(  # noqa: S603 - our own interpreter, our own words
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout],
        env={**os.environ, "POLYWIRE_PURE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return email.message_from_string(wheel.read(f"polywire-{polywire.__version__}.dist-info/METADATA").decode())


def checked_in() -> set[str]:
    """The files of the checkout that are not made from others."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout, so there is nothing to compare with")
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - wherever git is
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in done.stdout.split("\0") if name and (ROOT / name).exists()}


def test_the_names_carry_the_version_and_the_platform(dist: Path) -> None:
    version = polywire.__version__
    assert {path.name for path in dist.iterdir()} == {
        f"polywire-{version}.tar.gz",
        f"polywire-{version}-py3-none-any.whl",
    }


def test_the_sdist_is_the_checkout(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert files - MADE_BY_SETUPTOOLS == checked_in()


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert files == {name.removeprefix("src/") for name in checked_in() if name.startswith("src/")}


def test_the_wheel_has_every_hot_module_as_source(wheel: zipfile.ZipFile) -> None:
    assert {name.replace(".", "/") + ".py" for name in hot_modules()} <= set(wheel.namelist())


def test_the_wheel_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    assert "polywire/py.typed" in wheel.namelist()
    assert f"polywire-{polywire.__version__}.dist-info/licenses/LICENSE" in wheel.namelist()


def test_nothing_in_the_wheel_knows_where_it_was_built(wheel: zipfile.ZipFile, checkout: Path) -> None:
    places = (str(ROOT).encode(), str(checkout).encode())
    assert [name for name in wheel.namelist() if any(place in wheel.read(name) for place in places)] == []


def test_the_metadata_says_what_it_is_and_what_it_needs(metadata: Message) -> None:
    assert metadata["Version"] == polywire.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()
    assert set(metadata.get_all("Provides-Extra", [])) == {"cluster", "java", "pipeline"}


def test_the_lock_file_has_a_version_that_is_allowed_of_everything_that_is_wanted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["pipeline"]]
    for group in project["dependency-groups"].values():
        wanted += [each for each in group if isinstance(each, str)]
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements-dev.lock").read_text())[1:]
    locked: dict[str, list[Requirement]] = {}
    for entry in entries:
        requirement = Requirement(entry.split("\\")[0])
        assert "--hash=sha256:" in entry, requirement.name
        locked.setdefault(requirement.name, []).append(requirement)
    for each in map(Requirement, wanted):
        found = locked.get(canonicalize_name(each.name), [])
        assert found, f"{each.name} is not locked: run 'make lock'"
        for requirement in found:
            (version,) = [specifier.version for specifier in requirement.specifier]
            assert each.specifier.contains(version), f"{each} does not allow {version}: run 'make lock'"
