"""Compile the hot modules with mypyc while the package is built.

Everything that can be said in pyproject.toml is said there; this file is the one thing that can't: running mypyc.
With ``POLYWIRE_PURE=1``, or where there is no C compiler, nothing is compiled and the same sources run interpreted.
"""

import os
import re
import shutil
import sys
import threading
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
COMPILERS = ("cc", "gcc", "clang", "cl")
COMMANDS_WITHOUT_CODE = {"sdist", "egg_info", "dist_info"}
"""What a build runs besides the compiling: mypyc would take a minute for each, and put its C files into the sdist."""

DEFERRED_WITHOUT_COLLECTOR = re.compile(
    r"(_dealloc\(\w+ \*self\)\n\{\n)\s*CPy_TRASHCAN_BEGIN\(self, \w+\)\n(.*?)\s*CPy_TRASHCAN_END\(self\)\n", re.DOTALL
)
"""How mypyc 2.4 ends an object of an ``acyclic`` class: it may put it off to a list that is linked through the garbage
collector's head, which these objects don't have, so that the link lands in somebody else's memory. Objects that the
collector knows are untracked first, and don't match."""


def has_compiler() -> bool:
    """Whether a C compiler can be found, the way the build itself will look for it."""
    named = os.environ.get("CC", "").split()
    return any(shutil.which(name) for name in (named[:1] or COMPILERS))


def hot_extensions() -> list[Extension]:
    """The extension modules mypyc makes, or none in a pure build or where only names and versions are wanted."""
    if os.environ.get("POLYWIRE_PURE", "0") not in {"", "0"} or COMMANDS_WITHOUT_CODE & set(sys.argv):
        return []
    if not has_compiler():
        print("polywire: no C compiler found, the hot modules will run interpreted", file=sys.stderr)
        return []
    from mypyc.build import mypycify  # noqa: PLC0415 - a pure build must not need mypyc

    sys.path.insert(0, str(SOURCE.absolute()))
    from polywire.process import hot_modules  # noqa: PLC0415 - found there, whatever is installed

    names = hot_modules()
    paths = [str(SOURCE / Path(*name.split(".")).with_suffix(".py")) for name in names]
    # mypyc 2.4 fails on classes it reads back from mypy's cache, so it gets none; C files that did not change are
    # not compiled again all the same. Modules that are not compiled may import what is not there during a build, Spark
    # say, so their errors don't count here.
    options = ["--cache-dir=/dev/null", "--follow-imports=silent"]
    print(f"translating {len(names)} modules to C, which takes about a minute", file=sys.stderr, flush=True)
    extensions = mypycify([*options, *paths], opt_level="3", debug_level="0", separate=True)
    for extension in extensions:
        extension.depends.append(__file__)
    return extensions


def mended(source: str) -> str:
    """A copy of a C file of mypyc's, beside it, in which objects without the collector's head end at once."""
    path = Path(source)
    copy = path.with_name(path.name.replace("__native", "__mended", 1))
    copy.write_text(DEFERRED_WITHOUT_COLLECTOR.sub(r"\1\2\n", path.read_text(encoding="utf-8")), encoding="utf-8")
    return str(copy)


class BuildHotModules(build_ext):
    """Compiles extensions side by side, and mypyc's runtime once: compiling it for each takes as long as the rest."""

    def build_extensions(self) -> None:
        """Build all of them, passing over runtime files whose object is there."""
        self._built = 0
        compile_file = self.compiler._compile  # noqa: SLF001 - the one place where a file can be passed over
        one_at_a_time = threading.Lock()

        def compile_new(target: str, source: str, *rest: object) -> None:
            if Path(source).name.startswith("__native"):
                compile_file(target, mended(source), *rest)
                return
            with one_at_a_time:
                if not Path(target).exists() or Path(target).stat().st_mtime < Path(source).stat().st_mtime:
                    compile_file(target, source, *rest)

        self.compiler._compile = compile_new  # noqa: SLF001 - as above
        # Where this Python was installed is nothing to others who install the wheel, and modules don't link with it.
        self.compiler.linker_so = [word for word in self.compiler.linker_so if not word.startswith("-Wl,-rpath,")]
        self.parallel = os.cpu_count()
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Build one, and show how far it is: on a terminal in place, elsewhere now and then."""
        super().build_extension(ext)
        self._built += 1
        if sys.stderr.isatty():
            print(f"\r\x1b[Kcompiled {self._built} of {len(self.extensions)}", end="", file=sys.stderr, flush=True)
        elif self._built % 20 == 0 or self._built == len(self.extensions):
            print(f"compiled {self._built} of {len(self.extensions)}", file=sys.stderr, flush=True)
        if sys.stderr.isatty() and self._built == len(self.extensions):
            print(file=sys.stderr)


setup(ext_modules=hot_extensions(), cmdclass={"build_ext": BuildHotModules})
