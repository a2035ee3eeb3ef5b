"""Limits of clients of an edge: one connection, one address prefix, all of them together (pure).

The address of a first packet may be forged. So an edge keeps few handshakes whose sender has not
proved its address; it answers further ones with a Retry (RFC 9000, section 8.1.2), which keeps no
state here and costs the client one round trip.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from outrider.bounds import NonNegativeInt, PositiveFloat, PositiveInt, above, between
from outrider.errors import ConfigError, OverloadedError
from services.edge.limits.fair_queue import LoopShare, LoopUses
from services.edge.limits.quotas import Count, QuotaLimits, Quotas, Rate, RateLimit

MAX_RECEIVED_BYTES_PER_CONNECTION: Final = 8 << 20
"""Received on one connection and not processed yet; at least a frame."""
_HANDSHAKE_BURST_S: Final = 5.0
_TYPING_BURST_S: Final = 20.0
"""By default enough for a whole context and a whole frame."""
_FLOODS: Final = RateLimit(per_s=0.1, burst=10.0)
"""HTTP/2 connections of one address prefix that are closed for too many frames, before further ones
of it have to do with smaller bursts."""
MAX_EARLY_BYTES: Final = 16 << 20
"""Most 0-RTT data of all connections whose handshake is not complete; at least one frame fits."""


@dataclass(frozen=True, slots=True)
class AddressPrefixes:
    """How many leading bits of an address identify a client's network. Limits count per prefix."""

    ipv4_bits: int = 32
    ipv6_bits: int = 56
    """What a provider usually gives to one home (RFC 6177, section 2); a host can send from any
    address in it."""

    def of(self, host: str) -> str:
        """The prefix of a numeric address; an IPv4 address mapped into IPv6 (RFC 4291, section
        2.5.5.2) counts as the IPv4 address."""
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        bits = self.ipv4_bits if address.version == 4 else self.ipv6_bits
        host_bits = address.max_prefixlen - bits
        return f"{type(address)(int(address) >> host_bits << host_bits)}/{bits}"


@dataclass(frozen=True, slots=True)
class HandshakeLimits:
    """For handshakes under way, of all clients together."""

    retry_from_half_open: int = 64
    """From so many on, clients have to validate their address with a Retry; 0: always."""
    max_half_open: int = 1024
    """Beyond it the newest are refused: the older ones are nearer to their end, which is a timeout
    at the latest."""
    max_resident_bytes: int = 0
    """Memory of the process above which no connection is admitted. 0: no limit."""


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Limits of the listener for one client, and for all together: table `[edge.quic]`."""

    max_connections: PositiveInt = 1000
    max_chats_per_connection: PositiveInt = 64
    max_frame_bytes: PositiveInt = 1 << 20
    """Largest frame a client may send; prompts come in one frame. Routers have to accept it too."""
    max_unsent_bytes: PositiveInt = 256 * 1024
    """A client that leaves more of a chat unread loses it."""
    idle_timeout_s: PositiveFloat = 30.0
    """A connection is closed when nothing came for so long, and when for so long it had no chat and
    sent nothing but PINGs."""
    handshake_timeout_s: PositiveFloat = 5.0
    """A connection whose handshake takes longer is closed."""
    validate_addresses: bool = False
    """QUIC Retry for all: clients validate their address first, which takes one more round trip."""
    retry_from_half_open: NonNegativeInt = 64
    """QUIC Retry for all while so many handshakes are under way."""
    max_half_open: PositiveInt = 1024
    """Handshakes under way beyond which further ones are refused."""
    max_resident_bytes: NonNegativeInt = 0
    """Memory of the edge's process above which it takes no new connections; 0: four fifths of the
    machine's, or of its container's."""
    max_received_bytes: PositiveInt = 256 << 20
    """Memory for what clients sent that is not whole or not in order yet."""
    max_received_bytes_per_address: PositiveInt = 16 << 20
    """The same for one address prefix. A connection that needs more is closed."""
    ipv4_prefix_bits: Annotated[int, between(8, 32)] = 32
    """Leading bits of an IPv4 address that make a prefix; limits per address count prefixes."""
    ipv6_prefix_bits: Annotated[int, between(16, 128)] = 56
    """The same for IPv6."""
    max_connections_per_address: PositiveInt = 128
    """Including handshakes under way."""
    max_chats_per_address: PositiveInt = 128
    """Chats under way, whether their client is still there or not."""
    max_chats_per_client: PositiveInt = 64
    """Most chats of one client or user, over all addresses. Limits of a whole tenant are the
    router's (docs/guides/admission.md)."""
    max_streams_per_address: PositiveInt = 512
    """Streams open, with a chat or without."""
    handshakes_per_s: PositiveFloat = 100.0
    """Handshakes per second from one address prefix on average, five times as many at once."""
    loop_share_per_address: Annotated[float, above(0, 1)] = 0.25
    """Fraction of the event loop's time for what one address prefix sends, over QUIC and TCP, while
    others are there: some 1,700 datagrams a second on average, 2 s worth at once. Further datagrams
    wait, or are dropped when too many do; TCP connections are read later. Raise it where many
    clients come through one address (a NAT, a load balancer)."""
    typed_bytes_per_s: PositiveFloat = 64 << 10
    """Typed text from one address, and by one client, on average, 20 s worth at once. More is not
    prefilled."""
    prefill_tokens_per_s: PositiveFloat = 500.0
    """Tokens of typed text prefilled for one address, and for one client, on average, 20 s worth at
    once."""
    ahead_tokens_per_s: PositiveFloat = 20.0
    """Tokens of replies begun before their prompts are sent, for one address, and for one client,
    on average, 20 s worth at once. Each time that a reply is begun counts with all the tokens it
    may have."""
    early_data: bool = True
    """QUIC 0-RTT for clients that connected before: they learn a round trip sooner what this edge
    serves. Chats sent in 0-RTT wait for the handshake, and begin no sooner than without it."""

    def __post_init__(self) -> None:
        for name in ("max_received_bytes_per_address", "max_received_bytes"):
            if getattr(self, name) < self.max_frame_bytes:
                raise ConfigError(
                    f"quic.{name} is {getattr(self, name)}; it must be max_frame_bytes, "
                    f"{self.max_frame_bytes}, or more"
                )

    @property
    def handshakes(self) -> HandshakeLimits:
        """For handshakes under way."""
        return HandshakeLimits(
            retry_from_half_open=0 if self.validate_addresses else self.retry_from_half_open,
            max_half_open=self.max_half_open,
            max_resident_bytes=self.max_resident_bytes,
        )

    @property
    def prefixes(self) -> AddressPrefixes:
        """How an address is reduced to its network prefix."""
        return AddressPrefixes(self.ipv4_prefix_bits, self.ipv6_prefix_bits)

    @property
    def loop_share(self) -> LoopShare:
        """Share of the event loop's time for one address prefix."""
        return LoopShare(self.loop_share_per_address)

    @property
    def quotas(self) -> QuotaLimits:
        """Limits of the clients of one address prefix together."""
        return QuotaLimits(
            counts={
                Count.CONNECTIONS: self.max_connections_per_address,
                Count.STREAMS: self.max_streams_per_address,
                Count.CHATS: self.max_chats_per_address,
            },
            rates={
                Rate.HANDSHAKES: _rate(self.handshakes_per_s, _HANDSHAKE_BURST_S),
                Rate.FLOODS: _FLOODS,
                **self._typing_rates(),
            },
        )

    @property
    def client_quotas(self) -> QuotaLimits:
        """Limits of one client or user, over all addresses."""
        counts = {Count.CHATS: self.max_chats_per_client}
        return QuotaLimits(counts=counts, rates=self._typing_rates())

    def _typing_rates(self) -> dict[Rate, RateLimit]:
        return {
            Rate.TYPED_BYTES: _rate(self.typed_bytes_per_s, _TYPING_BURST_S),
            Rate.PREFILL_TOKENS: _rate(self.prefill_tokens_per_s, _TYPING_BURST_S),
            Rate.AHEAD_TOKENS: _rate(self.ahead_tokens_per_s, _TYPING_BURST_S),
        }


def _rate(per_s: float, burst_s: float) -> RateLimit:
    return RateLimit(per_s, per_s * burst_s)


class MemoryBudget:
    """Bytes held for one connection, for those of an address prefix, or for all. Budgets are
    nested: bytes taken from one are also taken from those around it."""

    __slots__ = ("_max_bytes", "_parent", "num_bytes")

    def __init__(self, max_bytes: int, parent: MemoryBudget | None = None) -> None:
        self._max_bytes = max_bytes
        self._parent = parent
        self.num_bytes = 0
        """Held now."""

    @property
    def parent(self) -> MemoryBudget | None:
        """The one around it."""
        return self._parent

    def lacking(self, num_bytes: int) -> MemoryBudget | None:
        """The innermost budget into which so many more bytes do not fit; None: they do."""
        if self.num_bytes + num_bytes > self._max_bytes:
            return self
        return None if self._parent is None else self._parent.lacking(num_bytes)

    def take(self, num_bytes: int) -> bool:
        """Hold more bytes; False, and nothing is taken, if they do not fit."""
        if self.num_bytes + num_bytes > self._max_bytes:
            return False
        if self._parent is not None and not self._parent.take(num_bytes):
            return False
        self.num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Hold so many less."""
        self.num_bytes -= num_bytes
        if self._parent is not None:
            self._parent.give_back(num_bytes)

    def clear(self) -> None:
        """Hold nothing."""
        self.give_back(self.num_bytes)

    def close(self) -> None:
        """Release everything; bytes returned later are not counted."""
        self.clear()
        self._parent = None
        self._max_bytes = -1


class Verdict(Enum):
    """Decision on a first packet."""

    ADMIT = "admitted"
    RETRY = "asked for proof"
    REFUSE_MEMORY = "memory"
    REFUSE_HALF_OPEN = "half-open"
    REFUSE_QUOTA = "quota"


REASONS: Final = {
    Verdict.REFUSE_MEMORY: "this edge has no memory to spare; try again later",
    Verdict.REFUSE_HALF_OPEN: "too many handshakes are under way; try again",
    Verdict.REFUSE_QUOTA: "too many connections from this address; close some, or wait",
}


class HandshakeAdmission:
    """Decides about first packets and counts handshakes under way. Each admitted one holds a
    connection of its address prefix until `connection_ended`."""

    def __init__(self, limits: HandshakeLimits, quotas: Quotas[str]) -> None:
        self._limits = limits
        self._quotas = quotas
        self.num_half_open = 0

    def decide(
        self, prefix: str, *, is_validated: bool, resident_bytes: int, now: float
    ) -> Verdict:
        """A first packet came from `prefix`; `is_validated`: with a valid token of a Retry."""
        limits = self._limits
        if 0 < limits.max_resident_bytes < resident_bytes:
            return Verdict.REFUSE_MEMORY
        if not is_validated and self.num_half_open >= limits.retry_from_half_open:
            return Verdict.RETRY
        if self.num_half_open >= limits.max_half_open:
            return Verdict.REFUSE_HALF_OPEN
        try:
            self._quotas.spend(prefix, Rate.HANDSHAKES, 1, now)
            self._quotas.hold(prefix, Count.CONNECTIONS, now)
        except OverloadedError:
            # Others may have used up this prefix's quota by forging its addresses.
            return Verdict.REFUSE_QUOTA if is_validated else Verdict.RETRY
        self.num_half_open += 1
        return Verdict.ADMIT

    def handshake_ended(self) -> None:
        """A handshake is complete, or will never be."""
        self.num_half_open -= 1

    def connection_ended(self, prefix: str) -> None:
        """A connection has ended."""
        self._quotas.release(prefix, Count.CONNECTIONS)


class AddressState:
    """State shared by the connections of one address prefix."""

    def __init__(self, prefix: str, budget: MemoryBudget) -> None:
        self.prefix = prefix
        self.budget = budget
        self.num_connections = 0


class ListenerQuotas:
    """The limits of an edge, and what its clients use of them now. One object for all
    connections."""

    def __init__(
        self,
        limits: ListenerLimits,
        *,
        quotas: Quotas[str] | None = None,
        client_quotas: Quotas[bytes] | None = None,
    ) -> None:
        """`quotas` and `client_quotas` are those that all processes of this edge share; None: this
        is the only process."""
        self.limits = limits
        self.is_draining = False
        """No connection is admitted and no chat begins any more."""
        self.num_connections = 0
        """Number of connections whose handshake is complete."""
        # A table that is empty counts as false.
        self.quotas = Quotas[str](limits.quotas) if quotas is None else quotas
        """By address prefix."""
        self.client_quotas = (
            Quotas[bytes](limits.client_quotas) if client_quotas is None else client_quotas
        )
        """By Identity.client."""
        self.handshakes = HandshakeAdmission(limits.handshakes, self.quotas)
        self.loop_uses = LoopUses(limits.loop_share)
        self.early_data = MemoryBudget(max(MAX_EARLY_BYTES, limits.max_frame_bytes))
        """For 0-RTT data of connections whose handshake is not complete."""
        self._received = MemoryBudget(limits.max_received_bytes)
        self._addresses: dict[str, AddressState] = {}

    def connection_opened(self, prefix: str) -> tuple[AddressState, MemoryBudget]:
        """The state of a new connection's address prefix, and the connection's own budget."""
        address = self._addresses.get(prefix)
        if address is None:
            budget = MemoryBudget(self.limits.max_received_bytes_per_address, self._received)
            address = self._addresses[prefix] = AddressState(prefix, budget)
        address.num_connections += 1
        own = MemoryBudget(MAX_RECEIVED_BYTES_PER_CONNECTION, address.budget)
        return address, own

    def hold_chat(self, prefix: str, client: bytes, now: float) -> Callable[[], None]:
        """Count a chat of an address prefix and of a client (empty: it is the whole tenant's) until
        the returned function is called, which may be long after its connection. Raises
        OverloadedError."""
        with contextlib.ExitStack() as held:
            self.quotas.hold(prefix, Count.CHATS, now)
            held.callback(self.quotas.release, prefix, Count.CHATS)
            if client:
                self.client_quotas.hold(client, Count.CHATS, now)
                held.callback(self.client_quotas.release, client, Count.CHATS)
            return held.pop_all().close

    def spend(self, prefix: str, rate: Rate, amount: float, client: bytes, now: float) -> None:
        """Charge an address prefix and a client (empty: none). Raises OverloadedError if one of
        their quotas does not allow it."""
        self.quotas.spend(prefix, rate, amount, now)
        if client:
            self.client_quotas.spend(client, rate, amount, now)

    def connection_ended(self, address: AddressState) -> None:
        """A connection has ended, whether its handshake was complete or not."""
        self.handshakes.connection_ended(address.prefix)
        address.num_connections -= 1
        if not address.num_connections:
            del self._addresses[address.prefix]

    def admit(self) -> bool:
        """Whether a connection whose handshake is complete may stay; counts it if so."""
        if self.is_draining or self.num_connections >= self.limits.max_connections:
            return False
        self.num_connections += 1
        return True

    def dismiss(self) -> None:
        """An admitted connection has ended."""
        self.num_connections -= 1
