"""What the tests of the configuration share."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _away_from_any_polywire_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path, the working directory's file would be read."""
    monkeypatch.chdir(tmp_path)
