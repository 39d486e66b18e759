"""Services of other nodes: who offers what, and the calls that cross a link.

A node announces what its clients offer, over protocols with services (``native``) or as subscribers of the service's
topic. A call goes to a provider of its caller's own node if there is one, otherwise
to the other nodes that offer the service, which take turns. There it is an ordinary call, whose caller is the link. The
caller's node records it. When a node is lost, the calls that it was to answer fail at once.
"""

from collections.abc import Iterator
from typing import Final, final

from polywire.fabric.fabric import Fabric, Neighbour
from polywire.fabric.frames import (
    Asked,
    AskedOn,
    Ended,
    LinkError,
    Offered,
    Record,
    Replied,
    encode,
    message_of,
    published,
)
from polywire.hub.message import Message
from polywire.hub.services import END, Call, Caller, CallError, Provider

SERVICES_AT_ONCE: Final = 500
"""Services in one record, when a link is set up."""

Offer = tuple[str, bool]
"""A service, and whether it is offered natively."""


@final
class Calls:
    """The services of all other nodes, and the calls to and from them."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric: Final = fabric
        self._services: Final = fabric.hub.services
        self._afar: Final[dict[Offer, list[FarProvider]]] = {}
        self._turns: Final[dict[str, int]] = {}
        self._providers: Final[dict[str, FarProvider]] = {}
        self._callers: Final[dict[str, FarCaller]] = {}
        self._topics: Final[set[str]] = set()  # services that subscribers of a topic offer
        self._services.afar = self.choose
        self._services.on_offer = self._offers
        fabric.introductions.append(self._introduce)
        fabric.on_down.append(self._lost)
        fabric.on_topic_service = self._topic
        fabric.heeds[Offered] = self.heed_offered
        fabric.heeds[Asked] = self.heed_asked
        fabric.heeds[AskedOn] = self.heed_asked_on
        fabric.heeds[Replied] = self.heed_replied
        fabric.heeds[Ended] = self.heed_ended

    def choose(self, service: str, topics: bool) -> Provider | None:  # noqa: FBT001 - as Services calls it
        """The next of the nodes that offer a service; ``topics``: to subscribers of its topic is possible, too."""
        for native in (True, False) if topics else (True,):
            providers = self._afar.get((service, native))
            if providers is not None:
                turn = self._turns.get(service, 0) % len(providers)
                self._turns[service] = turn + 1
                return providers[turn]
        return None

    def heed_offered(self, neighbour: Neighbour, record: Offered) -> None:
        """Another node's clients offer other services."""
        provider = self._providers.get(neighbour.node)
        if provider is None:
            provider = FarProvider(neighbour)
            self._providers[neighbour.node] = provider
        for service in record.added:
            offer = (service, record.native)
            provider.offers.add(offer)
            others = self._afar.setdefault(offer, [])
            if provider not in others:
                others.append(provider)
        for service in record.removed:
            self._forget((service, record.native), provider)

    def heed_asked(self, neighbour: Neighbour, record: Asked) -> None:
        """A client of another node calls a service."""
        caller = self._callers.get(neighbour.node)
        if caller is None:
            caller = FarCaller(neighbour)
            self._callers[neighbour.node] = caller
        call = Call(caller, record.service, record.method, streamed=record.streamed)
        call.incoming = True
        caller.begin(record.call, call)
        self._services.start(call, message_of(record.request), last=record.last, seconds=record.seconds)

    def heed_asked_on(self, neighbour: Neighbour, record: AskedOn) -> None:
        """It has another request."""
        call = self._asked(neighbour, record.call)
        if call is not None:
            self._services.more(call, message_of(record.request), last=record.last)

    def heed_replied(self, neighbour: Neighbour, record: Replied) -> None:
        """A provider of another node has replied."""
        provider = self._providers.get(neighbour.node)
        call = None if provider is None else provider.calls.get(record.call)
        if provider is None or call is None:
            return
        reply = message_of(record.reply)
        self._services.reply(call, END if record.last and _is_end(reply, call) else reply, last=record.last)
        if call.ended:
            provider.calls.pop(record.call, None)

    def heed_ended(self, neighbour: Neighbour, record: Ended) -> None:
        """A call has ended on another node."""
        error = CallError(record.code, record.label, record.text, record.retry_after, from_hub=record.from_hub)
        if record.failed:
            provider = self._providers.get(neighbour.node)
            call = None if provider is None else provider.calls.pop(record.call, None)
            if call is not None:
                self._services.fail(call, error)
            return
        call = self._asked(neighbour, record.call)
        if call is not None:
            self._services.cancel(call, error)

    def _asked(self, neighbour: Neighbour, number: int) -> Call | None:
        caller = self._callers.get(neighbour.node)
        return None if caller is None else caller.calls.get(number)

    def _introduce(self, _neighbour: Neighbour) -> Iterator[Record]:
        for native, names in ((True, self._services.names()), (False, list(self._topics))):
            for start in range(0, len(names), SERVICES_AT_ONCE):
                some = names[start : start + SERVICES_AT_ONCE]
                left = [each for each in some if (self._services.is_offered(each) if native else each in self._topics)]
                yield Offered(tuple(left), (), native)

    def _offers(self, service: str, yes: bool) -> None:  # noqa: FBT001 - the answer to a question
        self._announce(service, yes=yes, native=True)

    def _topic(self, service: str, yes: bool) -> None:  # noqa: FBT001 - as above
        """Somebody has subscribed to the topic of a service, or nobody is subscribed any more."""
        if yes:
            self._topics.add(service)
        else:
            self._topics.discard(service)
        self._announce(service, yes=yes, native=False)

    def _announce(self, service: str, *, yes: bool, native: bool) -> None:
        self._fabric.tell_all(Offered((service,), (), native) if yes else Offered((), (service,), native))

    def _forget(self, offer: Offer, provider: "FarProvider") -> None:
        provider.offers.discard(offer)
        others = self._afar.get(offer, [])
        if provider in others:
            others.remove(provider)
            if not others:
                del self._afar[offer]
                self._turns.pop(offer[0], None)

    def _lost(self, node: str) -> None:
        """A node has gone: its calls end, and those that it was to answer."""
        provider = self._providers.pop(node, None)
        if provider is not None:
            for offer in list(provider.offers):
                self._forget(offer, provider)
            for call in list(provider.calls.values()):
                self._services.fail(call, CallError(503, "node-lost", "the node of the provider was lost", 1))
            provider.calls.clear()
        caller = self._callers.pop(node, None)
        if caller is not None:
            for call in list(caller.calls.values()):
                self._services.cancel(call, CallError(499, "caller-gone", "the node of the caller was lost"))
            caller.calls.clear()


@final
class FarProvider(Provider):
    """A node whose clients offer services."""

    takes_failed_body = True

    def __init__(self, neighbour: Neighbour) -> None:
        self.offers: Final[set[Offer]] = set()
        self.calls: Final[dict[int, Call]] = {}
        self._neighbour: Final = neighbour

    def request(self, call: Call, message: Message, *, last: bool) -> None:
        """Send a request over the link."""
        request = published(message)
        if call.number in self.calls:
            self._neighbour.put(AskedOn(call.number, request, last))
            return
        self.calls[call.number] = call
        self._neighbour.put(
            Asked(call.number, call.service, call.method, request, call.seconds, streamed=call.streamed, last=last)
        )

    def cancel(self, call: Call, error: CallError) -> None:
        """The call is of no use any more."""
        if self.calls.pop(call.number, None) is not None:
            self._neighbour.put(_ended(call.number, error, failed=False))


@final
class FarCaller(Caller):
    """A node whose clients call services of this one."""

    takes_failed_body = True

    def __init__(self, neighbour: Neighbour) -> None:
        self.calls: Final[dict[int, Call]] = {}
        self._numbers: Final[dict[Call, int]] = {}
        self._neighbour: Final = neighbour

    def begin(self, number: int, call: Call) -> None:
        """A call with this number on the caller's node begins."""
        self.calls[number] = call
        self._numbers[call] = number

    def reply(self, call: Call, message: Message, *, last: bool) -> None:
        """Send a reply over the link."""
        number = self._numbers.get(call)
        if number is None:
            return
        record = Replied(number, published(message), last)
        try:
            encode(record)
        except LinkError as error:
            self.fail(call, CallError(502, "unencodable", str(error)))
            return
        self._neighbour.put(record)
        if last:
            self._over(call, number)

    def fail(self, call: Call, error: CallError) -> None:
        """Say over the link that it has failed."""
        number = self._numbers.get(call)
        if number is not None:
            self._neighbour.put(_ended(number, error, failed=True))
            self._over(call, number)

    def _over(self, call: Call, number: int) -> None:
        self.calls.pop(number, None)
        self._numbers.pop(call, None)


def _ended(number: int, error: CallError, *, failed: bool) -> Ended:
    return Ended(number, failed, error.code, error.tag, error.text, error.retry_after, error.from_hub)


def _is_end(reply: Message, call: Call) -> bool:
    """Whether a last reply brings nothing but the end of a stream."""
    return call.streamed and not reply.body and not reply.channel and not reply.attachments and not reply.headers
