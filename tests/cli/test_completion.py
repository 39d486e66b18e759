"""Shell completion: what docs/cli.md says of it, in a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
COMPLETE = """
COMP_WORDS=({words})
COMP_CWORD={at}
_polywire_completion polywire
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash here")


def in_bash(script: str, home: Path) -> str:
    """What a script prints in a bash of its own, whose home is ``home``."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(  # noqa: S603 - our own script
        [str(BASH), "--norc", "-c", script],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PATH": path, "HOME": str(home)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_what_is_installed_completes_commands_options_and_choices(tmp_path: Path) -> None:
    assert "installed" in in_bash("polywire --install-completion\ntrue", tmp_path)
    tries = {
        ("polywire", "se"): {"serve", "serve-echo"},
        ("polywire", "sub", "--f"): {"--for", "--format"},
        ("polywire", "sub", "--format", ""): {"text", "body", "json", "raw"},
    }
    for words, wanted in tries.items():
        quoted = " ".join(f"'{word}'" for word in words)
        script = f'source "$HOME/.bashrc"\n{COMPLETE.format(words=quoted, at=len(words) - 1)}'
        assert set(in_bash(script, tmp_path).split()) == wanted


def test_what_would_be_installed_is_shown_and_nothing_else_done(tmp_path: Path) -> None:
    assert "complete -o default -F _polywire_completion polywire" in in_bash(
        "polywire --show-completion\ntrue", tmp_path
    )
    assert list(tmp_path.iterdir()) == []
