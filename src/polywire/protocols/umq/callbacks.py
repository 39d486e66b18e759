"""The functions this side has registered for the peer to call back."""

from typing import Final, Generic, TypeVar

from polywire.protocols.umq.errors import FatalCode, LocalProtocolError, error_text
from polywire.protocols.umq.frames import Callback, CallException
from polywire.protocols.umq.ids import IdSequence, check_id

MAX_CALLBACKS: Final = 1024

T = TypeVar("T")


class Callbacks(Generic[T]):
    """Callback ids and what they stand for, from ``register`` to ``unregister`` or the connection's end (UMQ-105)."""

    def __init__(self, *, limit: int = MAX_CALLBACKS) -> None:
        self.limit: Final = limit
        self._registered: dict[int, T] = {}
        self._ids = IdSequence()

    def __len__(self) -> int:
        return len(self._registered)

    def register(self, function: T, callback_id: int | None = None) -> int:
        """Make a callback known, under an id of this object's choice unless one is given. Returns the id."""
        if len(self._registered) >= self.limit:
            raise LocalProtocolError(f"{self.limit} callbacks are registered, no more allowed", rule="UMQ-136")
        if callback_id is None:
            callback_id = self._ids.choose(self._registered)
        check_id(callback_id)
        if callback_id in self._registered:
            raise LocalProtocolError(f"callback {callback_id} is registered already", rule="UMQ-49")
        self._registered[callback_id] = function
        return callback_id

    def unregister(self, callback_id: int) -> None:
        """Forget a callback; one that is not registered is no mistake."""
        self._registered.pop(callback_id, None)

    def find(self, frame: Callback) -> T | CallException:
        """What a ``B`` is for, or the answer to send where there is no such callback (UMQ-106)."""
        function = self._registered.get(frame.callback_id)
        if function is None:
            return CallException(frame.call_id, error_text(FatalCode.CALLBACK_NOT_FOUND))
        return function
