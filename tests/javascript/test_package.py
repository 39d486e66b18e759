"""The JavaScript client as its users get it: packed, installed, typed and small, with examples that run."""

import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.hub_process import HubProcess, running_hub
from tests.javascript.runtimes import CLIENT, FOLDER, IS_CI, needs_node, node
from tests.server.test_endings import encrypting

pytestmark = needs_node

ROOT = CLIENT.parents[1]
MOST = 4000
"""Bytes of the browser's module, minified and compressed."""

TOOLS = CLIENT / "node_modules" / ".bin"
needs_tools = pytest.mark.skipif(
    not TOOLS.exists() and not IS_CI, reason="run 'make setup' with npm and access to its registry"
)
PAGES = (ROOT / "docs" / "clients" / "javascript.md", CLIENT / "README.md")
EXAMPLE = re.compile(r"^```js hub\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(EXAMPLE.findall(page.read_text(encoding="utf-8")), 1)
]


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    done = subprocess.run(  # noqa: S603 - tools of ours
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty project that has installed the package."""
    if shutil.which("npm") is None and not IS_CI:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("project")
    quiet = {"npm_config_loglevel": "error", "npm_config_cache": str(folder / "cache"), "npm_config_offline": "true"}
    packed = json.loads(run(["npm", "pack", "--json", "--pack-destination", folder, CLIENT], folder, **quiet))
    [found] = packed if isinstance(packed, list) else packed.values()
    assert {each["path"] for each in found["files"]} == {
        "LICENSE",
        "README.md",
        "node.js",
        "package.json",
        "polywire.d.ts",
        "polywire.js",
    }
    (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    run(["npm", "install", "--no-audit", "--no-fund", folder / found["filename"]], folder, **quiet)
    return folder


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


@pytest.mark.parametrize("block", EXAMPLES)
def test_every_example_runs_with_the_installed_package(project: Path, hub: HubProcess, block: str) -> None:
    program = project / "example.js"
    program.write_text(block.replace("127.0.0.1:7101", f"127.0.0.1:{hub.port('umq')}"), encoding="utf-8")
    printed = run(["node", program], project)
    for words in re.findall(r"// prints (.*)", block):
        assert words in printed


@needs_tools
@pytest.mark.parametrize("resolution", [("esnext", "bundler"), ("nodenext", "nodenext")])
def test_the_types_say_what_a_program_may_write(project: Path, resolution: tuple[str, str]) -> None:
    shutil.copy(FOLDER / "types.ts", project)
    module, how = resolution
    options = ["--strict", "--noEmit", "--target", "es2022", "--lib", "es2022,dom", "--types", ""]
    run([TOOLS / "tsc", *options, "--module", module, "--moduleResolution", how, "types.ts"], project)


@needs_tools
def test_the_module_for_browsers_is_small(tmp_path: Path) -> None:
    minified = run(
        [TOOLS / "terser", CLIENT / "polywire.js", "--module", "--compress", "passes=3", "--mangle"], tmp_path
    )
    assert len(gzip.compress(minified.encode(), 9)) < MOST


def test_the_module_for_browsers_needs_no_other() -> None:
    assert not re.search(
        r"^\s*(import|export .* from)\b|\bimport\(", (CLIENT / "polywire.js").read_text(), re.MULTILINE
    )


def test_the_lock_file_names_no_registry() -> None:
    lock = (CLIENT / "package-lock.json").read_text(encoding="utf-8")
    assert "http" not in re.sub(r'"funding": \{.*?\}', "", lock, flags=re.DOTALL)
    assert '"resolved"' not in lock


def test_node_reaches_a_hub_with_tls(tmp_path: Path) -> None:
    config, _ = encrypting(tmp_path)
    with running_hub(config=config) as hub:
        address = f"wss://localhost:{hub.port('umq')}/umq"
        with node(NODE_EXTRA_CA_CERTS=str(tmp_path / "root.pem")) as program:
            assert program.run("open", address) == "open"
            assert program.run("order", address, 100) == [100, 0]
        with node() as program:  # which does not know the authority
            assert "certificate" in program.run("refused", address)["text"]
