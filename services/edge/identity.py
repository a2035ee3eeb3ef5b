"""Whose a chat is: from a client's credential to its trust group and what it may ask for (pure).

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from hashlib import blake2b, sha256
from typing import Final

from outrider.errors import (
    ConfigError,
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from outrider.session_types import Priority

GROUP_BYTES: Final = 16
MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 64
MAX_KEY_CHARS: Final = 512
MAX_USER_CHARS: Final = 256
_DIGEST_CHARS: Final = 64
# What a hash is for: BLAKE2b's `person`.
_GROUP: Final = b"group"
_SALT: Final = b"salt"
_REQUEST: Final = b"request"
_ADDRESS: Final = b"address"


class Trust(IntEnum):
    """Who shares what is learned and cached; a wider group has a larger number."""

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
    models: tuple[str, ...] = ()
    """Those it may use; empty: all."""


_ANONYMOUS: Final = AccessPolicy()


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """A tenant with keys; `[[edge.tenants]]`. Raises ConfigError for values that cannot work."""

    name: str
    """Under which its chats are counted, billed and admitted."""
    key_digests: tuple[str, ...]
    """SHA-256 of its keys, hexadecimal: `printf %s KEY | sha256sum`. Keys have to be random and
    long, or they could be guessed from this. Several, while a key is being replaced."""
    trust: str = "tenant"
    """Which of its chats share what is learned and cached: tenant, user, connection or chat."""
    max_priority: str = "medium"
    """The highest priority its chats may ask for: low, medium or high."""
    trust_trace: bool = False
    """Whether the traces of its clients are continued; otherwise the edge's own traces link to
    them."""
    models: tuple[str, ...] = ()
    """Those of the edge's models that its chats may use; empty: all."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("each of tenants needs a name")
        trust_of(self.trust, f"trust of tenant {self.name}")
        priority_of(self.max_priority, f"max_priority of tenant {self.name}")
        for digest in self.key_digests:
            if len(digest) != _DIGEST_CHARS or set(digest) - set("0123456789abcdef"):
                raise ConfigError(
                    f"key_digests of tenant {self.name} are SHA-256 in {_DIGEST_CHARS} small "
                    "hexadecimal digits: printf %s KEY | sha256sum"
                )

    def access_policy(self) -> AccessPolicy:
        """For its chats."""
        return AccessPolicy(
            tenant=self.name,
            trust=Trust[self.trust.upper()],
            max_priority=Priority[self.max_priority.upper()],
            trusts_trace=self.trust_trace,
            models=self.models,
        )


@dataclass(frozen=True, slots=True)
class Credential:
    """What a client says of itself."""

    key: str = field(default="", repr=False)
    user: str = field(default="", repr=False)
    client_secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose a chat is."""

    tenant: str = ""
    """For billing and admission; empty: none."""
    owner: bytes = b""
    """Who may resume the chat or repeat its request: the group, or under `chat` the client."""
    client: bytes = b""
    """The client or user against whose quotas it counts; empty: it is the whole tenant's, whose
    limits are the router's."""
    address_hash: bytes = b""
    """Of the address prefix of a client without a key; empty: it has a key."""
    cache_salt: bytes = b""
    """Replicas reuse the KV of prompts only between sessions of equal salts."""
    group: bytes = b""
    """Trust group whose chats learn from each other; empty: it learns by itself."""
    group_lasts: bool = False
    """The group's name is the same after a restart, and it is more than one connection's: what it
    learns may be kept."""
    max_priority: Priority = Priority.MEDIUM
    trusts_trace: bool = False
    models: tuple[str, ...] = ()
    """Those it may use; empty: all."""

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


class ApiKeys:
    """The tenants' keys."""

    def __init__(self, tenants: Iterable[TenantConfig] = ()) -> None:
        """Raises ConfigError for two tenants of one name or key."""
        self._policies: dict[bytes, AccessPolicy] = {}
        names = set[str]()
        for tenant in tenants:
            if tenant.name in names:
                raise ConfigError(f"tenant {tenant.name} is named twice in tenants")
            names.add(tenant.name)
            for digest in map(bytes.fromhex, tenant.key_digests):
                if digest in self._policies:
                    raise ConfigError(f"a key of tenant {tenant.name} is named twice in tenants")
                self._policies[digest] = tenant.access_policy()

    def find(self, key: str) -> AccessPolicy | None:
        """The policy of the key's tenant; None for an unknown key. The time of the lookup depends
        on the SHA-256 of what was sent, which cannot be steered towards that of a key."""
        return self._policies.get(sha256(key.encode()).digest())

    def allow(self, tenants: Mapping[str, tuple[str, ...]]) -> None:
        """Tenants of these names may use these models from now on."""
        for digest, policy in self._policies.items():
            if policy.tenant in tenants:
                self._policies[digest] = replace(policy, models=tenants[policy.tenant])


class Identities:
    """From credentials to identities."""

    def __init__(
        self,
        key: bytes,
        keys: ApiKeys | None = None,
        anonymous: AccessPolicy | None = _ANONYMOUS,
        *,
        key_lasts: bool = False,
    ) -> None:
        """Edges with the same `key`, of any length, have the same groups. `anonymous`: for clients
        without a key; None: they are refused. `key_lasts`: the key is the same after a restart."""
        self._key_lasts = key_lasts
        # BLAKE2b takes keys of at most 64 bytes; the configured one may be longer.
        self._key = blake2b(key, digest_size=32).digest()
        self._keys = keys or ApiKeys()
        self._anonymous = anonymous

    def of(
        self, credential: Credential, connection: bytes, chat: bytes, address: str = ""
    ) -> Identity:
        """Whose a chat is. `connection` and `chat`: secrets of at least 16 bytes that the
        connection and the chat have to themselves; `address`: the prefix that it comes from. Raises
        UnauthenticatedError and InvalidRequestError."""
        _check(credential)
        policy, kind = self._policy_of(credential)
        secret = credential.client_secret or connection
        is_known = False
        if policy.trust is Trust.TENANT:
            is_known = True
            owner = self._group(Trust.TENANT, kind, policy, b"")
        elif policy.trust is Trust.USER and credential.key and credential.user:
            is_known = True
            owner = self._group(Trust.USER, kind, policy, credential.user.encode())
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
        )

    @property
    def anonymous_models(self) -> tuple[str, ...] | None:
        """What clients without a key may use, empty: all; None: they are refused."""
        return None if self._anonymous is None else self._anonymous.models

    def allow(self, anonymous: tuple[str, ...], tenants: Mapping[str, tuple[str, ...]]) -> None:
        """From now on clients without a key, and those of tenants by name, may use these models;
        empty: all. Tenants that are not named may use what they could before."""
        if self._anonymous is not None:
            self._anonymous = replace(self._anonymous, models=anonymous)
        self._keys.allow(tenants)

    def _policy_of(self, credential: Credential) -> tuple[AccessPolicy, bytes]:
        if not credential.key:
            if self._anonymous is None:
                raise UnauthenticatedError("this edge serves clients with a key; send one")
            return self._anonymous, b"anonymous"
        policy = self._keys.find(credential.key)
        if policy is None:
            raise UnauthenticatedError("the key is not known here; check it, or ask for one")
        return policy, b"tenant"

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
