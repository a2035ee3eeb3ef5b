"""Turns a client's credential into an identity: trust group and permissions (pure).

A credential is an API key (outrider.access.api_keys), a JSON Web Token of an issuer that the edge
trusts (services.edge.access.tokens), or none. It determines tenant, limits, models and regions.

The members of a trust group share what is learned and cached: n-grams and calibrations of drafts,
token ids of texts, prefixes in replicas' caches. Policies, from the narrowest on:

    chat          every chat by itself
    connection    one client: by its secret, which it sends on every connection, or the connection
    user          one user of a tenant, as the tenant names them
    tenant        everybody who has a key of the tenant

Names of groups are keyed hashes (BLAKE2b, RFC 7693): without the edges' key nobody can compute the
names of a tenant's cached blocks from the tenant's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from hashlib import blake2b
from typing import Final, Protocol

from outrider.access.api_keys import (
    ALL_MODELS,
    USER_SCOPES,
    KeyTable,
    Scope,
    check_label,
    check_listed,
    narrowed,
    require,
)
from outrider.bounds import check_bounds
from outrider.errors import (
    ConfigError,
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from outrider.fair_work.turns import Requester
from outrider.session.types import Priority
from services.edge.access.limits import UNLIMITED, TenantLimits

GROUP_BYTES: Final = 16
MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 64
MAX_KEY_CHARS: Final = 8192
"""Longest API key or token; longer ones are refused unread."""
MAX_USER_CHARS: Final = 256
MAX_TENANTS: Final = 4096
# What a hash is for: BLAKE2b's `person`.
_GROUP: Final = b"group"
_SALT: Final = b"salt"
_REQUEST: Final = b"request"
_ADDRESS: Final = b"address"


class Trust(IntEnum):
    """Which clients share what is learned and cached; wider groups have larger numbers."""

    CHAT = 0
    CONNECTION = 1
    USER = 2
    TENANT = 3


def trust_of(name: str, where: str) -> Trust:
    """The policy of this name. Raises ConfigError."""
    try:
        return Trust[name.upper()]
    except KeyError:
        known = ", ".join(trust.name.lower() for trust in Trust)
        raise ConfigError(f"{where} is one of {known}, not {name!r}") from None


def priority_of(name: str, where: str) -> Priority:
    """The class of this name. Raises ConfigError."""
    try:
        return Priority[name.upper()]
    except KeyError:
        raise ConfigError(f"{where} is low, medium or high, not {name!r}") from None


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """For the chats of a tenant, or of clients without a key."""

    tenant: str = ""
    """Tenant under which they are counted and billed."""
    trust: Trust = Trust.CONNECTION
    max_priority: Priority = Priority.MEDIUM
    trusts_trace: bool = False
    models: tuple[str, ...] = ALL_MODELS
    """Names of the models that it may use."""
    regions: tuple[str, ...] = ALL_MODELS
    """Names of the regions that may hold its prompts."""
    limits: TenantLimits = UNLIMITED


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """Permissions and limits of a tenant; `[[edge.tenants]]`. Raises ConfigError for values that
    cannot work."""

    name: str
    """Under which its chats are counted, billed and admitted; `outrider keys create --tenant` makes
    its keys."""
    trust: str = "tenant"
    """Which of its chats share what is learned and cached: tenant, user, connection or chat."""
    max_priority: str = "medium"
    """The highest priority its chats may ask for: low, medium or high."""
    trust_trace: bool = False
    """Whether the traces of its clients are continued; otherwise the edge's own traces link to
    them."""
    models: tuple[str, ...] = ALL_MODELS
    """Models of the edge that its chats may use; "*": all; empty: none."""
    regions: tuple[str, ...] = ALL_MODELS
    """Regions that may hold its prompts, whatever a chat asks for; "*": all; empty: none."""
    requests_per_minute: int = 0
    """Chats that may begin, on average and at once after a pause; 0: no limit."""
    input_tokens_per_minute: int = 0
    """Tokens of prompts; 0: no limit. No single prompt may have more."""
    output_tokens_per_minute: int = 0
    """Tokens of replies; 0: no limit. A running chat continues beyond the limit, and the tenant's
    next chats wait for it."""
    max_sessions: int = 0
    """Chats under way at once; 0: no limit."""

    def __post_init__(self) -> None:
        check_label(self.name, "a tenant's name")
        trust_of(self.trust, f"trust of tenant {self.name}")
        priority_of(self.max_priority, f"max_priority of tenant {self.name}")
        check_listed(self.models, f"models of tenant {self.name}")
        check_listed(self.regions, f"regions of tenant {self.name}")
        check_bounds(self.limits, f"tenant {self.name}: ")

    @property
    def limits(self) -> TenantLimits:
        """How much its chats may use."""
        return TenantLimits(
            self.requests_per_minute,
            self.input_tokens_per_minute,
            self.output_tokens_per_minute,
            self.max_sessions,
        )

    def access_policy(self) -> AccessPolicy:
        """For its chats."""
        return AccessPolicy(
            tenant=self.name,
            trust=Trust[self.trust.upper()],
            max_priority=Priority[self.max_priority.upper()],
            trusts_trace=self.trust_trace,
            models=self.models,
            regions=self.regions,
            limits=self.limits,
        )


class Tenants:
    """Permissions of tenants, by name."""

    def __init__(self, tenants: Iterable[TenantConfig] = ()) -> None:
        """Raises ConfigError for two tenants of one name, and for too many."""
        self._policies: dict[str, AccessPolicy] = {}
        for tenant in tenants:
            if tenant.name in self._policies:
                raise ConfigError(f"tenant {tenant.name} is named twice in tenants")
            self._policies[tenant.name] = tenant.access_policy()
        if len(self._policies) > MAX_TENANTS:
            raise ConfigError(f"there are {len(self._policies)} tenants, at most {MAX_TENANTS}")

    def of_key(self, name: str) -> AccessPolicy:
        """Policy of an API key's tenant. A tenant that the configuration does not list has no
        limits but its keys': the author of the keys file decides about them."""
        found = self._policies.get(name)
        return found or AccessPolicy(name, Trust.TENANT)

    def of_token(self, name: str) -> AccessPolicy:
        """Policy of a token's tenant, which is named by another party's service. Raises
        PermissionDeniedError if the configuration does not list it."""
        found = self._policies.get(name)
        if found is None:
            raise PermissionDeniedError(
                f"the token is of tenant {name[:100]!r}, which this edge does not list; ask its "
                "operator to add it"
            )
        return found


@dataclass(frozen=True, slots=True)
class Credential:
    """A client's credentials."""

    key: str = field(default="", repr=False)
    """An API key or a token; empty: none."""
    user: str = field(default="", repr=False)
    client_secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a chat, with its permissions."""

    tenant: str = ""
    """For billing and admission; empty: none."""
    owner: bytes = b""
    """Who may resume the chat or repeat its request: the group, or under `chat` only the client."""
    client: bytes = b""
    """The client or user whose quotas the chat counts towards; empty: the whole tenant, whose
    limits the router enforces."""
    address_hash: bytes = b""
    """Hash of the address prefix of a client without a key; empty: it has a key."""
    cache_salt: bytes = b""
    """Replicas reuse the KV of prompts only between sessions of equal salts."""
    group: bytes = b""
    """Trust group whose chats learn from each other; empty: the chat learns by itself."""
    group_lasts: bool = False
    """Whether the group's name is the same after a restart, and the group is more than one
    connection's: its statistics may then be kept."""
    max_priority: Priority = Priority.MEDIUM
    trusts_trace: bool = False
    models: tuple[str, ...] = ALL_MODELS
    """Names of the models that it may use."""
    scopes: frozenset[Scope] = USER_SCOPES
    """Kinds of request that it may send."""
    regions: tuple[str, ...] = ALL_MODELS
    """Names of the regions that may hold its prompts."""
    limits: TenantLimits = UNLIMITED
    """How much all chats of its tenant may use together."""
    key_id: str = ""
    """Id of the API key; empty: a token, or none."""

    def require(self, scope: Scope) -> None:
        """Raises PermissionDeniedError unless this may be asked for."""
        require(self.scopes, scope)

    def residency(self, asked: tuple[str, ...]) -> tuple[str, ...]:
        """The regions that may hold a prompt whose chat asks for `asked`; empty: any. Raises
        PermissionDeniedError if none is left."""
        allowed = narrowed(asked or ALL_MODELS, self.regions)
        if not allowed:
            named = ", ".join(self.regions) or "none"
            raise PermissionDeniedError(
                f"prompts of this credential's tenant may be held in {named} only; widen the "
                "chat's residency, or leave it out"
            )
        return () if "*" in allowed else allowed

    @property
    def share(self) -> str:
        """For counting: the tenant, or the client if it belongs to none. No tenant's name begins
        with a zero byte."""
        return self.tenant or f"\0{self.owner.hex()}"

    @property
    def origin(self) -> str:
        """For counting: the tenant, or the address prefix of a client that belongs to none, since
        one client may claim to be many."""
        return self.tenant or f"\0{self.address_hash.hex()}"

    @property
    def requester(self) -> Requester:
        """With whom its work shares this edge's threads."""
        return Requester(self.origin, self.client.hex())

    @property
    def requester_elsewhere(self) -> Requester:
        """With whom its work shares other services' threads. Who reads it learns no more than from
        a chat's tenant, address hash and trust group."""
        return Requester.of(self.tenant, self.address_hash, self.group)

    def request_id(self, client_id: str) -> str:
        """The mesh's id of a request that its client calls `client_id`: 32 hexadecimal digits. No
        other owner's request has it, and it does not reveal the client's id."""
        digest = blake2b(client_id.encode(), key=self.owner, digest_size=16, person=_REQUEST)
        return digest.hexdigest()

    def class_of(self, asked: Priority | None) -> Priority:
        """The priority of a chat that asks for this one; None asks for none. Raises
        PermissionDeniedError."""
        if asked is not None and asked > self.max_priority:
            raise PermissionDeniedError(
                f"this credential is for chats up to priority {self.max_priority.name.lower()}; "
                "ask for that, or use another key"
            )
        return asked or min(Priority.MEDIUM, self.max_priority)


UNIDENTIFIED: Final = Identity()


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """Claims of a valid token."""

    tenant: str
    user: str = ""
    """Empty: none in particular."""
    scopes: frozenset[Scope] = frozenset()


class TokenChecker(Protocol):
    """Knows the tokens of an issuer."""

    def check(self, token: str, now: float) -> TokenClaims:
        """The token's claims, at `now` in seconds since 1970. Raises UnauthenticatedError."""
        ...


@dataclass(frozen=True, slots=True)
class _Admitted:
    """The owner of a credential."""

    policy: AccessPolicy
    kind: bytes
    scopes: frozenset[Scope]
    user: str
    key_id: str = ""
    """Empty: of no API key."""


class Identities:
    """From credentials to identities."""

    def __init__(
        self,
        key: bytes,
        keys: KeyTable | None = None,
        anonymous: AccessPolicy | None = None,
        *,
        clock: Callable[[], float],
        tenants: Tenants | None = None,
        tokens: TokenChecker | None = None,
        key_lasts: bool = False,
    ) -> None:
        """Edges with the same `key`, of any length, have the same groups. `anonymous`: for clients
        without a key; None: they are refused. `clock`: seconds since 1970. `tokens`: None if no
        issuer is trusted. `key_lasts`: the key is the same after a restart."""
        self._key_lasts = key_lasts
        # BLAKE2b takes keys of at most 64 bytes; the configured one may be longer.
        self._key = blake2b(key, digest_size=32).digest()
        self._keys = keys or KeyTable()
        self._anonymous = anonymous
        self._clock = clock
        self._tenants = tenants or Tenants()
        self._tokens = tokens

    def of(
        self,
        credential: Credential,
        connection: bytes,
        chat: bytes,
        address: str = "",
        *,
        needs_key: bool = False,
    ) -> Identity:
        """The identity of a chat. `connection` and `chat`: secrets of at least 16 bytes that belong
        to only the connection and the chat; `address`: the prefix that it comes from; `needs_key`:
        refuse clients without a key, even if the edge serves them elsewhere. Does not wait. Raises
        UnauthenticatedError, PermissionDeniedError, InvalidRequestError."""
        _check(credential)
        admitted = self._admit(credential, needs_key)
        policy, kind, user = admitted.policy, admitted.kind, admitted.user
        secret = credential.client_secret or connection
        is_known = False
        if policy.trust is Trust.TENANT:
            is_known = True
            owner = self._group(Trust.TENANT, kind, policy, b"")
        elif policy.trust is Trust.USER and credential.key and user:
            is_known = True
            owner = self._group(Trust.USER, kind, policy, user.encode())
        else:
            owner = self._group(Trust.CONNECTION, kind, policy, secret)
        # The owner never leaves the edge, so that request ids cannot be tried out behind it.
        salt = group = blake2b(owner, key=self._key, digest_size=GROUP_BYTES, person=_SALT).digest()
        if policy.trust is Trust.CHAT:
            salt, group = self._group(Trust.CHAT, kind, policy, chat), b""
        return Identity(
            tenant=policy.tenant,
            owner=owner,
            client=b"" if policy.trust is Trust.TENANT else owner,
            address_hash=b"" if credential.key else self._hash(address),
            cache_salt=salt,
            group=group,
            group_lasts=is_known and self._key_lasts,
            max_priority=policy.max_priority,
            trusts_trace=policy.trusts_trace,
            models=policy.models,
            scopes=admitted.scopes,
            regions=policy.regions,
            limits=policy.limits,
            key_id=admitted.key_id,
        )

    def check(self, identity: Identity) -> None:
        """Raises UnauthenticatedError if the API key that an identity came with is good no longer.
        A token is looked at when a chat begins: its issuer cannot take it back."""
        if identity.key_id:
            self._keys.check(identity.key_id, self._clock())

    @property
    def anonymous_models(self) -> tuple[str, ...] | None:
        """Models that clients without a key may use; None: such clients are refused."""
        return None if self._anonymous is None else self._anonymous.models

    def set_keys(self, keys: KeyTable) -> None:
        """Replace all API keys."""
        self._keys = keys

    def set_tenants(self, tenants: Tenants, anonymous_models: tuple[str, ...]) -> None:
        """Replace the tenants and the models for clients without a key."""
        self._tenants = tenants
        if self._anonymous is not None:
            self._anonymous = replace(self._anonymous, models=anonymous_models)

    def _admit(self, credential: Credential, needs_key: bool) -> _Admitted:
        if not credential.key:
            if self._anonymous is None or needs_key:
                raise UnauthenticatedError("only clients with an API key are served here; send one")
            return _Admitted(self._anonymous, b"anonymous", USER_SCOPES, "")
        now = self._clock()
        # API keys have no dots, tokens have two.
        if self._tokens is not None and credential.key.count(".") == 2:
            claims = self._tokens.check(credential.key, now)
            policy = self._tenants.of_token(claims.tenant)
            return _Admitted(policy, b"tenant", claims.scopes, claims.user)
        key = self._keys.find(credential.key, now)
        policy = self._tenants.of_key(key.tenant)
        top = policy.max_priority if key.max_priority is None else key.max_priority
        policy = replace(
            policy,
            max_priority=min(top, policy.max_priority),
            models=narrowed(key.models, policy.models),
        )
        return _Admitted(policy, b"tenant", key.scopes, credential.user, key.id)

    def _hash(self, address: str) -> bytes:
        hashed = blake2b(address.encode(), key=self._key, digest_size=GROUP_BYTES, person=_ADDRESS)
        return hashed.digest()

    def _group(self, trust: Trust, kind: bytes, policy: AccessPolicy, member: bytes) -> bytes:
        name = blake2b(key=self._key, digest_size=GROUP_BYTES, person=_GROUP)
        for part in (trust.name.encode(), kind, policy.tenant.encode(), member):
            name.update(len(part).to_bytes(4, "little") + part)
        return name.digest()


def _check(credential: Credential) -> None:
    if len(credential.key) > MAX_KEY_CHARS or len(credential.user) > MAX_USER_CHARS:
        raise InvalidRequestError(
            f"a key has at most {MAX_KEY_CHARS} characters, a user's name {MAX_USER_CHARS}"
        )
    num_bytes = len(credential.client_secret)
    if num_bytes and not MIN_SECRET_BYTES <= num_bytes <= MAX_SECRET_BYTES:
        raise InvalidRequestError(
            f"a client secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes, not {num_bytes}"
        )
