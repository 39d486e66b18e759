"""What the HTTP listener has to show: health, metrics, and with a journal its segments and a place to publish to."""

from polywire.server.address import Address
from polywire.server.config.schema import Journal
from polywire.server.gate import Gate
from polywire.server.http import HttpConnections, HttpProtocol
from polywire.server.http_resources import Answer, Post, Tree
from polywire.server.metrics import CONTENT_TYPE, Metrics
from polywire.server.tls_listener import MakeProtocol


class OperatorPages:
    """The pages of one hub."""

    def __init__(self, gate: Gate, metrics: Metrics, journal: Journal) -> None:
        self._gate = gate
        self._metrics = metrics
        self._journal = journal

    def at(self, address: Address) -> MakeProtocol:
        """What makes the protocols of connections to this address."""
        handlers = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics_page}
        connections: HttpConnections = {}
        trees = self._trees(address)
        posts = self._posts(address)
        return lambda _: HttpProtocol(handlers, connections, trees, posts)

    def _trees(self, address: Address) -> dict[str, Tree]:
        if not self._journal.enabled:
            return {}
        from polywire.server.journal_pages import JournalPages  # noqa: PLC0415 - Arrow, only where there is a journal

        return {"/journal/": JournalPages(self._journal.path, self._gate, local=address.local)}

    def _posts(self, address: Address) -> dict[str, Post]:
        if not self._journal.enabled:
            return {}
        from polywire.server.ingest import Ingest  # noqa: PLC0415 - as above

        return {"/publish": Ingest(self._gate, local=address.local)}

    def _healthz(self) -> Answer:
        return 200, "text/plain", b"ok\n"

    def _readyz(self) -> Answer:
        if not self._gate.open:
            return 503, "text/plain", b"draining\n"
        if self._gate.journaling is not None and self._gate.journaling.failed:
            return 503, "text/plain", b"the journal can't be written\n"
        return 200, "text/plain", b"ready\n"

    def _metrics_page(self) -> Answer:
        return 200, CONTENT_TYPE, self._metrics.text()
