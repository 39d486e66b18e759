"""The parts of docs/architecture.md that are made from the code: the graph of imports, and the path of a message.

``make docs`` writes them; with ``--check`` it only says which are out of date. The path is recorded while a hub in this
process forwards a message. Compiled functions can't be seen there, so this runs with ``POLYWIRE_PURE=1``.
"""

import asyncio
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from grimp import build_graph

import polywire
from polywire.server.config import load
from polywire.server.server import Server
from tools.import_cycles import PACKAGE, between_parts, part_of

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
SRC = Path(polywire.__file__).parent
CHANNEL = "greenhouse/temperature"
MOST_HOPS = 30
MESSAGES = 9
"""The path of most of them counts: the first one fills caches, and on a busy machine one may wait for its turn."""

Function = tuple[str, str]
"""A file below ``src/polywire``, and the function's name in it."""

MOMENTS = {
    ("wire/frame.py", "Run.__init__"),
    ("journal/columns.py", "Columns.hold"),
    ("hub/message.py", "Message.__init__"),
    ("protocols/umq/delivery.py", "Prepared.__init__"),
    ("hub/outbox.py", "Outbox._append"),
}
"""When something is made of a message, or when it is handed over; the last one is ``socket.send``."""


def imports() -> str:
    """Which package imports which, as a diagram. What an imported package imports as well is left out."""
    graph = build_graph(PACKAGE, exclude_type_checking_imports=False, cache_dir=None)
    modules = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    parts = between_parts(modules, part_of(PACKAGE, graph.modules))

    def reached(part: str) -> set[str]:
        return parts[part].union(*(reached(each) for each in parts[part]))

    lines = ["```mermaid", "graph TD"]
    for part in sorted(parts):
        indirectly = set[str]().union(*(reached(each) for each in parts[part]))
        lines += [f"    {_node(part)} --> {_node(each)}" for each in sorted(parts[part] - indirectly)]
    return "\n".join(["", *lines, "```", "", ""])


def _node(part: str) -> str:
    name = part.removeprefix(PACKAGE + ".")
    return f"{name}[{name}{'/' if (SRC / name).is_dir() else '.py'}]".replace("__main__[", "main[")


class Recording:
    """The functions of ``src/polywire`` that are on the stack when something happens to a message."""

    def __init__(self) -> None:
        self._calls = 0
        self._begun: dict[FrameType, int] = {}  # with the number of the call
        self._hops: dict[Function, int] = {}
        self._written = False

    def hops(self) -> tuple[Function, ...]:
        """The functions that pass the message on, in the order of their calls."""
        return tuple(sorted(self._hops, key=self._hops.__getitem__))

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record what happens meanwhile."""
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        if self._written:
            return
        if event == "call":
            self._calls += 1
            self._begun[frame] = self._calls
            if _function(frame) in MOMENTS:
                self._note(frame)
        elif event == "return":
            self._begun.pop(frame, None)
        elif event == "c_call" and getattr(argument, "__qualname__", "") == "socket.send":
            self._written = self._note(frame)

    def _note(self, frame: FrameType) -> bool:
        """Keep the stack, unless it is that of a client."""
        stack: dict[Function, int] = {}
        at: FrameType | None = frame
        while at is not None:
            function = _function(at)
            if function is not None and not function[1].endswith("__init__"):
                stack[function] = self._begun.get(at, 0)
            at = at.f_back
        if any(file.startswith("client/") for file, _ in stack):
            return False
        self._hops = stack | self._hops
        return True


def _function(frame: FrameType) -> Function | None:
    path = Path(frame.f_code.co_filename)
    return (path.relative_to(SRC).as_posix(), frame.f_code.co_qualname) if path.is_relative_to(SRC) else None


async def recorded() -> tuple[Function, ...]:
    """The path of a message with QoS 1 from an MQTT client to a UMQ client, through a hub with a journal."""
    with tempfile.TemporaryDirectory() as folder:
        off = [f"listen.{key}=off" for key in ("http", "fmqp", "micromsg", "sabc", "sabc_ws")]
        on = ["listen.mqtt=tcp://127.0.0.1:0", "listen.umq=ws://127.0.0.1:0/umq", f"journal.path={folder}/journal"]
        server = Server(load(None, [*off, *on]))
        await server.start()
        try:
            return await _between(server.ready())
        finally:
            await server.close()


async def _between(addresses: dict[str, str]) -> tuple[Function, ...]:
    publisher = addresses["mqtt"].replace("tcp:", "mqtt:")
    subscriber = addresses["umq"].replace("ws:", "umq:")
    paths: Counter[tuple[Function, ...]] = Counter()
    async with await polywire.connect(publisher) as device, await polywire.connect(subscriber) as browser:
        stream = await browser.subscribe(CHANNEL)
        for _ in range(MESSAGES):
            receipt = device.publish(CHANNEL, b"21.5")
            recording = Recording()
            with recording.on():
                await anext(stream)
            await receipt
            paths[recording.hops()] += 1
    return paths.most_common(1)[0][0]


def path() -> str:
    """The table of hops."""
    lines = ["| hop | file | function |", "| --- | --- | --- |"]
    for number, (file, name) in enumerate(asyncio.run(recorded()), start=1):
        lines.append(f"| {number} | `{file}` | `{name}` |")
    return "\n".join(["", *lines, "", ""])


def page(text: str) -> str:
    """The page, its parts as they should be."""
    for key, part in (("imports", imports()), ("path", path())):
        before, start, rest = text.partition(f"<!-- {key} -->\n")
        text = before + start + part + "".join(rest.partition(f"<!-- end of {key} -->")[1:])
    return text


def main() -> int:
    """Write the parts, or check them."""
    before = PAGE.read_text(encoding="utf-8")
    wanted = page(before)
    hops = len(re.findall(r"^\| \d+ \|", wanted, re.MULTILINE))
    if hops > MOST_HOPS:
        sys.stderr.write(f"a message takes {hops} hops through the hub, and at most {MOST_HOPS} are allowed\n")
        return 1
    if before != wanted and "--check" in sys.argv:
        sys.stderr.write("docs/architecture.md is not what the code says: run 'make docs'\n")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
