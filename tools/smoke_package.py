"""``make package``: install the wheel and the sdist of a folder in empty environments, and use what was installed.

Each installation has a fresh virtual environment, and is used with an empty home, outside the checkout and with nothing
of the caller's environment. The sdist is installed twice: where a C compiler is found, and where none is. The wheel is
tried once more with the extra ``pipeline``. What is tried then is in ``smoke_use.py``.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

USE = Path(__file__).with_name("smoke_use.py")
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
INSTALL_SECONDS = 1800
USE_SECONDS = 1200


@dataclass(frozen=True, slots=True)
class Installation:
    """One way to install the package, and what it must come to."""

    name: str
    suffix: str
    modules: str
    extra: str = ""
    compiler: bool = True


INSTALLATIONS = (
    Installation("wheel", ".whl", "compiled"),
    Installation("wheel[pipeline]", ".whl", "compiled", extra="[pipeline]"),
    Installation("sdist without a compiler", ".tar.gz", "interpreted", compiler=False),
    Installation("sdist", ".tar.gz", "compiled"),
)


def archive(folder: Path, suffix: str) -> Path:
    """The one file of this kind in the folder."""
    found = sorted(folder.glob(f"polywire-*{suffix}"))
    if len(found) != 1:
        sys.exit(f"{folder} must hold one polywire-*{suffix}, and holds {len(found)}: empty it and build again")
    return found[0].resolve()


def install(installation: Installation, package: Path, environment: Path) -> None:
    """Make the environment and install the package into it, with what pip needs of the caller's environment."""
    venv.create(environment, with_pip=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "POLYWIRE"))}
    # Nothing but Python can be found there.
    variables["PATH"] = f"{environment / 'bin'}:{SYSTEM}" if installation.compiler else str(environment / "bin")
    command = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*command, f"{package}{installation.extra}"],
        check=True,
        env=variables,
        cwd=environment,
        timeout=INSTALL_SECONDS,
    )


def use(installation: Installation, environment: Path, home: Path) -> None:
    """Run what is tried with every installation."""
    variables = {"HOME": str(home), "PATH": f"{environment / 'bin'}:{SYSTEM}", "LANG": "C.UTF-8"}
    if "JAVA_HOME" in os.environ:
        variables["JAVA_HOME"] = os.environ["JAVA_HOME"]
    command = [str(environment / "bin" / "python"), "-I", str(USE), installation.modules]
    if installation.extra:
        command.append("--pipeline")
    subprocess.run(command, check=True, env=variables, cwd=home, timeout=USE_SECONDS)


def main() -> None:
    """Try the installations named on the command line, or all."""
    names = [installation.name for installation in INSTALLATIONS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the wheel and the sdist are")
    parser.add_argument("--only", action="append", choices=names, help="try only this one; may be repeated")
    arguments = parser.parse_args()
    for installation in INSTALLATIONS:
        if arguments.only and installation.name not in arguments.only:
            continue
        package = archive(arguments.folder, installation.suffix)
        print(f"{installation.name}: installing {package.name}", flush=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="polywire-") as folder:
            environment, home = Path(folder, "environment"), Path(folder, "home")
            home.mkdir()
            try:
                install(installation, package, environment)
                use(installation, environment, home)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                sys.exit(f"{installation.name}: {error}")
        print(f"{installation.name}: works ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
