"""A link that goes nowhere, for peers that are fed by hand."""

from polywire.client.link import Link


class Sink(Link):
    """Keeps what is written. ``closed`` once somebody wanted that."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.texts: list[bool] = []
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def send(self, payload: bytes, *, text: bool) -> None:
        self.written.append(payload)
        self.texts.append(text)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    async def close(self) -> None:
        self.closed = True
