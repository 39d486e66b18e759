"""Services: who offers them, and the calls in flight.

A call goes to one of the service's providers, who take turns. It ends once: by its last reply, by an error, by its
deadline, by its caller disconnecting (the provider is notified) or by its provider disconnecting (the caller is
notified). Both directions may be streams; a call that is not streamed has one request and one reply.
"""

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import mypyc_attr

from polywire.hub.client import Client
from polywire.hub.message import FailedAttachment, Message
from polywire.hub.outbox import Later, Timer
from polywire.hub.recorder import Recorder

DEFAULT_SECONDS: Final = 30.0

FAILED_BODY: Final = "failed-body"

LOWEST_CODE: Final = 400
HIGHEST_CODE: Final = 599
FAILED_CODE: Final = 500

END: Final = Message("", b"")
"""The last reply of a streamed call that brings nothing but the end: compare with ``is``."""


@final
@mypyc_attr(acyclic=True)
class CallError:
    """Why a call failed. ``code`` follows HTTP, from 400 to 599; ``tag`` is for programs, ``text`` for people.

    ``retry_after`` is in milliseconds; 0 means that trying again is of no use. ``from_hub``: the hub itself failed the
    call. Otherwise the service answered with this error, and ``tag`` is empty where it gave none.
    """

    def __init__(self, code: int, tag: str, text: str, retry_after: int = 0, *, from_hub: bool = True) -> None:
        self.code: Final = code
        self.tag: Final = tag
        self.text: Final = text
        self.retry_after: Final = retry_after
        self.from_hub: Final = from_hub

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CallError):
            return False
        mine = (self.code, self.tag, self.text, self.retry_after, self.from_hub)
        return mine == (other.code, other.tag, other.text, other.retry_after, other.from_hub)

    def __hash__(self) -> int:
        return hash((self.code, self.tag, self.text, self.retry_after, self.from_hub))

    def __repr__(self) -> str:
        values = f"{self.code}, {self.tag!r}, {self.text!r}, {self.retry_after}"
        return f"CallError({values}, from_hub={self.from_hub})"


def service_error(code: int, tag: str, text: str, retry_after: int = 0) -> CallError:
    """The error that a service answered with. A code that is not an error's becomes 500."""
    known = code if LOWEST_CODE <= code <= HIGHEST_CODE else FAILED_CODE
    return CallError(known, tag, text, max(retry_after, 0), from_hub=False)


@mypyc_attr(allow_interpreted_subclasses=True)
class Caller:
    """Somebody who calls. A session derives its own. ``connection`` is where it is, if anywhere.

    ``takes_failed_body``: whether a reply may be one whose body failed (``Message.body_failed``). ``by_topic``: its
    request was published on the topic of the service, whose subscribers have it already.
    """

    connection: Client | None = None
    takes_failed_body: bool = False
    by_topic: bool = False

    def reply(self, call: "Call", message: Message, *, last: bool) -> None:
        """A reply has come; ``last`` where no other will follow."""
        raise NotImplementedError

    def fail(self, call: "Call", error: CallError) -> None:
        """The call has failed."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Provider:
    """Somebody who offers services. A session derives its own. The fields are as with ``Caller``, for requests."""

    connection: Client | None = None
    takes_failed_body: bool = False

    def request(self, call: "Call", message: Message, *, last: bool) -> None:
        """A request has come, the call's first or a further one; ``last`` where no other will follow."""
        raise NotImplementedError

    def cancel(self, call: "Call", error: CallError) -> None:
        """The call ended without this provider's doing; replies to it are of no use any more."""
        raise NotImplementedError


@final
class Call:
    """One call, from its first request to its end. ``streamed``: the caller takes more than one reply.

    ``seconds`` is how long it may take, known from its start on. ``client`` is who calls, ``correlation`` what the
    journal calls it instead of its number: where the caller's protocol records the call under a name of its own.
    ``incoming``: it comes from another node, which records it, and goes to a provider of this one.
    """

    def __init__(self, caller: Caller, service: str, method: str, *, streamed: bool = False) -> None:
        self.caller: Final = caller
        self.service: Final = service
        self.method: Final = method
        self.streamed: Final = streamed
        self.started = 0  # by the hub's monotonic clock
        self.seconds = DEFAULT_SECONDS
        self.provider: Provider | None = None
        self.timer: Timer | None = None
        self.ended = False
        self.number = 0
        self.client: Client | None = caller.connection
        self.correlation = ""
        self.incoming = False

    def channel(self) -> str:
        """What is called, as one name."""
        return f"{self.service}/{self.method.replace('/', '.')}"

    def name(self) -> str:
        """What the journal's rows about it have in common."""
        return self.correlation or str(self.number)


@final
class Services:
    """The services on offer and the calls in flight. ``later`` runs deadlines, ``clock`` measures durations.

    ``elsewhere`` is called if no client offers a service: it may return a provider that reaches one by other means;
    then ``afar``, for one of another node, perhaps by its topic. ``on_offer`` is called with a service that the first
    client offers, and with False when none does any more.
    Services and calls belong to an owner: the client of their provider or caller, or these themselves without one.
    """

    def __init__(self, later: Later, clock: Callable[[], int]) -> None:
        self._later: Final = later
        self._clock: Final = clock
        self._providers: Final[dict[str, list[Provider]]] = {}  # those who may be called
        self._offered: Final[dict[object, dict[str, Provider]]] = {}  # by owner, suspended or not
        self._asked: Final[dict[object, set[Call]]] = {}  # calls that wait for a reply, by their provider's owner
        self._made: Final[dict[object, set[Call]]] = {}  # the same, by their caller's owner
        self._turns: Final[dict[str, int]] = {}
        self._under_way = 0
        self.elsewhere: Callable[[str], Provider | None] | None = None
        self.afar: Callable[[str, bool], Provider | None] | None = None
        self.on_offer: Callable[[str, bool], None] | None = None
        self.on_end: Callable[[Call, int, int], None] | None = None
        self.draining = False
        self.recorder: Recorder | None = None
        self.last_number = 0

    def serve(self, service: str, provider: Provider) -> bool:
        """Offer a service. False where this provider's owner does already."""
        owner = _provides(provider)
        offered = self._offered.get(owner)
        if offered is None:
            offered = {}
            self._offered[owner] = offered
        elif service in offered:
            return False
        offered[service] = provider
        self._provide(service, provider)
        return True

    def unserve(self, service: str, owner: object) -> bool:
        """Stop offering it; calls in flight continue. False if this owner did not offer it."""
        offered = self._offered.get(owner)
        provider = None if offered is None else offered.pop(service, None)
        if offered is None or provider is None:
            return False
        if not offered:
            del self._offered[owner]
        self._withdraw(service, provider)
        return True

    def suspend(self, service: str, owner: object) -> None:
        """Route no calls to this owner's service until it is resumed. Calls in flight continue."""
        self._withdraw(service, self._offered[owner][service])

    def resume(self, service: str, owner: object) -> None:
        """Let it be called again."""
        self._provide(service, self._offered[owner][service])

    def offers_of(self, owner: object) -> list[str]:
        """The services that an owner offers, suspended ones included."""
        return list(self._offered.get(owner, ()))

    def offers(self, owner: object, service: str) -> bool:
        """Whether an owner offers a service, suspended or not."""
        offered = self._offered.get(owner)
        return offered is not None and service in offered

    def offer_count(self, owner: object) -> int:
        """How many services this owner offers."""
        offered = self._offered.get(owner)
        return 0 if offered is None else len(offered)

    def call_count(self, owner: object) -> int:
        """How many calls an owner has made that have not ended."""
        made = self._made.get(owner)
        return 0 if made is None else len(made)

    def has(self, owner: object) -> bool:
        """Whether an owner offers a service, or has a part in a call that has not ended."""
        return owner in self._offered or owner in self._asked or owner in self._made

    def end_one(self, owner: object, *, made: bool = True) -> bool:
        """End one service of an owner that goes away, or one call it is to answer, or has ``made``. False for none."""
        offered = self._offered.get(owner)
        if offered is not None:
            return self.unserve(next(iter(offered)), owner)
        calls = self._asked.get(owner)
        if calls is not None:
            error = CallError(503, "provider-gone", "the provider disconnected before it replied", 1)
            return self.fail(next(iter(calls)), error)
        calls = self._made.get(owner)
        if made and calls is not None:
            error = CallError(499, "caller-gone", "the caller has disconnected")
            return self.cancel(next(iter(calls)), error)
        return False

    def offered(self, service: str) -> bool:
        """Whether a client of any node offers the service."""
        for provider in self._providers.get(service, ()):
            if _may_be_asked(provider):
                return True
        return self.afar is not None and self.afar(service, False) is not None  # noqa: FBT003 - not by its topic

    def is_offered(self, service: str) -> bool:
        """Whether a client of this node offers the service."""
        return service in self._providers

    def names(self) -> list[str]:
        """All services on offer."""
        return list(self._providers)

    def under_way(self) -> int:
        """How many calls have not ended."""
        return self._under_way

    def start(self, call: Call, message: Message, *, last: bool = True, seconds: float = DEFAULT_SECONDS) -> bool:
        """Begin a call with its first request. False if that failed; the caller has been notified then."""
        if self.draining:
            call.ended = True
            call.caller.fail(call, CallError(503, "draining", "the hub is shutting down", 1000))
            return False
        self.last_number += 1
        call.number = self.last_number
        if self.recorder is not None and not call.incoming:
            self.recorder.requested(call.name(), call.channel(), message, call.client, last=last)
        provider = self._choose(call.service, here=call.incoming, topics=not call.caller.by_topic)
        if provider is None:
            call.ended = True
            error = CallError(404, "no-service", f"nobody offers the service {call.service!r}")
            self._record(call, error)
            call.caller.fail(call, error)
            return False
        call.provider = provider
        call.started = self._clock()
        call.seconds = seconds
        self._under_way += 1
        self._asked.setdefault(_provides(provider), set()).add(call)
        self._made.setdefault(_calls(call.caller), set()).add(call)
        call.timer = self._later(seconds, _Deadline(self, call, seconds).passed)
        if message.body_failed and not provider.takes_failed_body:
            self.fail(call, CallError(400, FAILED_BODY, failed_body_text(message)))
        else:
            provider.request(call, message, last=last)
        return True

    def more(self, call: Call, message: Message, *, last: bool) -> bool:
        """A further request of a streamed call. False where the call has ended."""
        provider = call.provider
        if call.ended or provider is None:
            return False
        if self.recorder is not None and not call.incoming:
            self.recorder.requested(call.name(), call.channel(), message, call.client, last=last)
        provider.request(call, message, last=last)
        return True

    def reply(self, call: Call, message: Message, *, last: bool = True, client: Client | None = None) -> bool:
        """A provider's reply. False where the call has ended. A caller that takes one reply gets the first as last.

        ``client`` is who replied, where the provider speaks for several.
        """
        if call.ended:
            return False
        last = last or not call.streamed
        if message.body_failed and not call.caller.takes_failed_body:
            return self.fail(call, CallError(502, FAILED_BODY, failed_body_text(message)))
        if self.recorder is not None and not call.incoming:
            if client is None and call.provider is not None:
                client = call.provider.connection
            self.recorder.replied(call.name(), call.channel(), message, client, last=last)
        if last:
            self._end(call, 200)
        call.caller.reply(call, message, last=last)
        return True

    def fail(self, call: Call, error: CallError) -> bool:
        """A provider's error. False where the call has ended."""
        if call.ended:
            return False
        self._record(call, error)
        self._end(call, error.code)
        call.caller.fail(call, error)
        return True

    def cancel(self, call: Call, error: CallError) -> bool:
        """End a call from the caller's side: the provider is notified, the caller is not."""
        provider = call.provider
        if call.ended or provider is None:
            return False
        self._record(call, error)
        self._end(call, error.code)
        provider.cancel(call, error)
        return True

    def expire(self, call: Call, seconds: float) -> None:
        """The call's deadline has passed: notify both sides."""
        provider = call.provider
        if call.ended or provider is None:
            return
        error = CallError(504, "timeout", f"no reply from {call.service!r} within {seconds:g} s")
        self._record(call, error)
        self._end(call, error.code)
        provider.cancel(call, error)
        call.caller.fail(call, error)

    def _record(self, call: Call, error: CallError) -> None:
        if self.recorder is not None and not call.incoming:
            self.recorder.call_failed(call.name(), call.channel(), error.code, error.tag, error.text)

    def _choose(self, service: str, *, here: bool, topics: bool) -> Provider | None:
        providers = self._providers.get(service)
        if providers is not None:
            count = len(providers)
            turn = self._turns.get(service, 0)
            for _ in range(count):
                provider = providers[turn % count]
                turn = turn % count + 1
                if _may_be_asked(provider):
                    self._turns[service] = turn
                    return provider
        found = self.elsewhere(service) if self.elsewhere is not None and topics else None
        if found is None and self.afar is not None and not here:
            found = self.afar(service, topics)
        return found

    def _provide(self, service: str, provider: Provider) -> None:
        """Route calls to this provider's service, too."""
        providers = self._providers.get(service)
        if providers is not None:
            providers.append(provider)
            return
        self._providers[service] = [provider]
        if self.on_offer is not None:
            self.on_offer(service, True)  # noqa: FBT003 - whether it is offered

    def _withdraw(self, service: str, provider: Provider) -> None:
        """Route no more calls to this provider's service."""
        providers = self._providers.get(service)
        if providers is not None and provider in providers:
            providers.remove(provider)
            if not providers:
                del self._providers[service]
                self._turns.pop(service, None)
                if self.on_offer is not None:
                    self.on_offer(service, False)  # noqa: FBT003 - whether it is offered

    def _end(self, call: Call, code: int) -> None:
        call.ended = True
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        provider = call.provider
        if provider is not None:
            self._under_way -= 1
            _remove(self._asked, _provides(provider), call)
            _remove(self._made, _calls(call.caller), call)
        if self.on_end is not None:
            self.on_end(call, code, self._clock() - call.started)


@final
class _Deadline:
    """What a timer calls: a bound method, because compiled code makes no cheap closures."""

    def __init__(self, services: Services, call: Call, seconds: float) -> None:
        self._services: Final = services
        self._call: Final = call
        self._seconds: Final = seconds

    def passed(self) -> None:
        self._services.expire(self._call, self._seconds)


def failed_body_text(message: Message) -> str:
    """The error for a receiver that needs a body, if the body failed."""
    failure = message.attachments[0]
    return f"the body failed: {failure.text}" if isinstance(failure, FailedAttachment) else "the body failed"


def _provides(provider: Provider) -> object:
    """Whose services a provider's are: its client's, or its own where it has none."""
    client = provider.connection
    return provider if client is None else client


def _calls(caller: Caller) -> object:
    """Whose calls a caller's are."""
    client = caller.connection
    return caller if client is None else client


def _may_be_asked(provider: Provider) -> bool:
    """Whether a provider takes calls: not while its client's services are being ended."""
    client = provider.connection
    return client is None or client.serves


def _remove(calls: dict[object, set[Call]], owner: object, call: Call) -> None:
    mine = calls.get(owner)
    if mine is not None:
        mine.discard(call)
        if not mine:
            del calls[owner]
