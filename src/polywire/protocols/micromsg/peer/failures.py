"""What a MicroMsg2 peer raises in its program."""

from collections.abc import Mapping

from polywire.client.errors import ClientError
from polywire.protocols.micromsg.frames import Error


class Failure(ClientError):
    """The other side answered with ERROR; raised by a handler, a ``login`` or a ``subscribed``, it is that answer.

    ``name`` is one of MicroMsg2's (``forbidden``, ``no-such-destination``, …), ``arguments`` say more.
    """

    def __init__(self, name: str, /, **arguments: str) -> None:
        self.name = name
        self.arguments: Mapping[str, str] = {key.replace("_", "-"): value for key, value in arguments.items()}
        said = ", ".join(f"{key} {value}" for key, value in self.arguments.items())
        super().__init__(f"{name}: {said}" if said else name)

    @classmethod
    def of(cls, error: Error) -> "Failure":
        """What an ERROR frame says."""
        return cls(error.name, **dict(error.arguments))

    def frame(self, **more: str) -> Error:
        """The ERROR frame that says it, with ``more`` arguments in front."""
        return Error(self.name, tuple({**more, **self.arguments}.items()))
