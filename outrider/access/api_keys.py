"""API keys: their format, what is stored of them, and what each one allows (pure).

    or_3f9c0a1b2d4e_<64 hexadecimal digits>
       `- the id, which is no secret: logs, lists and commands name the key by it

The secret has 256 random bits, so it is stored as one round of SHA-256. Slow hashes such as Argon2
protect secrets that can be guessed, and would let a client that sends wrong keys keep an edge busy.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Final

from outrider.errors import ConfigError, PermissionDeniedError, UnauthenticatedError
from outrider.session.types import Priority

ALL_MODELS: Final = ("*",)
"""A list of models or regions that contains this name stands for all. An empty list allows none."""
MAX_KEYS: Final = 10_000
MAX_LISTED: Final = 256
"""Models or regions that one key or tenant may name."""
MAX_NAME_CHARS: Final = 128
DEAD_KEPT_S: Final = 90 * 86_400.0
"""How long expired and revoked keys are kept, to be listed and distinguished from unknown ones,
before they are deleted to make room."""
_LATEST: Final = 95_617_584_000.0
"""The year 5000: later times are mistakes."""
ID_CHARS: Final = 12
SECRET_BYTES: Final = 32
_FORM: Final = re.compile(rf"or_([0-9a-f]{{{ID_CHARS}}})_[0-9a-f]{{{2 * SECRET_BYTES}}}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{MAX_NAME_CHARS - 1}}}")
UNKNOWN: Final = "the key is not known here; check it, or ask for one"
"""Also the answer to a wrong secret with an existing id, so that a caller who tries keys does not
learn which ids exist."""


class Scope(Enum):
    """A kind of request that a credential can allow."""

    CHAT = "chat"
    """Chats, completions, typed text."""
    MODELS = "models"
    """The list of models."""
    TOKENIZE = "tokenize"
    """The ids of texts."""
    MESH = "mesh"
    """What the page /ui/mesh shows: regions, replicas, their load."""
    ADMIN = "admin"
    """Reserved for administration over the network, which does not exist yet."""


USER_SCOPES: Final = frozenset({Scope.CHAT, Scope.MODELS, Scope.TOKENIZE})
"""Scopes of a key that was made without naming any, and of clients without a key."""


def scopes_of(names: Iterable[str], where: str) -> frozenset[Scope]:
    """The scopes of these names. Raises ConfigError for others, and for none."""
    found = set[Scope]()
    for name in names:
        try:
            found.add(Scope(name))
        except ValueError:
            known = ", ".join(scope.value for scope in Scope)
            raise ConfigError(f"{where}: unknown scope {name!r}; use one of {known}") from None
    if not found:
        raise ConfigError(
            f"{where}: no scope is named, and a key without scopes allows nothing; name at least "
            "one"
        )
    return frozenset(found)


def is_allowed(name: str, allowed: Iterable[str]) -> bool:
    """Whether a list of models or regions has this one."""
    return any(one in ("*", name) for one in allowed)


def narrowed(names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """The names of `names` that are also in `allowed`. Either may be ALL_MODELS."""
    if "*" in names:
        return allowed
    return names if "*" in allowed else tuple(name for name in names if name in allowed)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The stored record of a key. Times are in seconds since 1970, UTC. Raises ConfigError for
    invalid values."""

    id: str
    name: str
    """For people: what the key is for. Several may have one name, while one replaces another."""
    digest: str = field(repr=False)
    """SHA-256 of the whole key, hexadecimal."""
    tenant: str
    """Name of the tenant that owns the key; limits, prices, trust and shares are the tenant's."""
    created: float = 0.0
    scopes: frozenset[Scope] = USER_SCOPES
    expires: float | None = None
    """None: never."""
    revoked: float | None = None
    """None: it is not."""
    max_priority: Priority | None = None
    """The highest it may ask for, no higher than its tenant may; None: as its tenant."""
    models: tuple[str, ...] = ALL_MODELS
    """Names of the tenant's models that the key may use."""

    def __post_init__(self) -> None:
        where = f"key {self.id[:64]!r}"
        if len(self.id) != ID_CHARS or set(self.id) - set("0123456789abcdef"):
            raise ConfigError(f"{where}: its id has {ID_CHARS} small hexadecimal digits")
        if _DIGEST.fullmatch(self.digest) is None:
            raise ConfigError(f"{where}: its digest is a SHA-256 in 64 small hexadecimal digits")
        for what, text in (("name", self.name), ("tenant", self.tenant)):
            check_label(text, f"{where}: its {what}")
        for what, at in (("created", self.created), ("expires", self.expires)):
            if at is not None and not 0 <= at < _LATEST:
                raise ConfigError(f"{where}: {what} is a time before the year 5000, or none")
        if not self.scopes:
            raise ConfigError(f"{where} has no scope and so allows nothing; revoke it instead")
        check_listed(self.models, f"{where}: its models")


def check_label(text: str, where: str) -> None:
    """Raises ConfigError unless the text may name a key or a tenant."""
    if _NAME.fullmatch(text) is None:
        raise ConfigError(
            f"{where} is 1 to {MAX_NAME_CHARS} letters, digits, '.', '_', '@', '-', a letter or "
            f"digit first, not {text[:100]!r}"
        )


def check_listed(names: tuple[str, ...], where: str) -> None:
    """Raises ConfigError for a list of models or regions that is too long or has odd names."""
    if len(names) > MAX_LISTED:
        raise ConfigError(f"{where} are {len(names)}, at most {MAX_LISTED} may be named")
    if any(not 0 < len(name) <= MAX_NAME_CHARS for name in names):
        raise ConfigError(f"{where} have names of 1 to {MAX_NAME_CHARS} characters")


def assemble(key_id: str, secret: bytes) -> str:
    """The text of a key, as its owner gets it. `secret`: SECRET_BYTES random ones."""
    text = f"or_{key_id}_{secret.hex()}"
    assert _FORM.fullmatch(text), "ids and secrets are made by this program"
    return text


def id_of(text: str) -> str:
    """The id in a key, "" for text of another form."""
    found = _FORM.fullmatch(text)
    return found[1] if found else ""


def digest_of(text: str) -> str:
    """SHA-256 of a key's text, hexadecimal: the only form in which the secret is stored."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_NOBODYS: Final = "0" * 64
"""Compared with the sent key if its id is unknown, so that an unknown id takes as long as a wrong
secret. No text with this SHA-256 is known."""


class KeyTable:
    """All keys, to find the one that was sent."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        """Raises ConfigError for two keys of one id, and for too many."""
        self._by_id: dict[str, ApiKey] = {}
        for key in keys:
            if key.id in self._by_id:
                raise ConfigError(f"two keys have the id {key.id}; revoke one and make another")
            self._by_id[key.id] = key
        if len(self._by_id) > MAX_KEYS:
            raise ConfigError(
                f"there are {len(self._by_id)} keys, at most {MAX_KEYS} are kept; those that were "
                f"revoked or expired go after {DEAD_KEPT_S / 86_400:.0f} days"
            )

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, text: str, now: float) -> ApiKey:
        """The record of a key that a caller sent. Raises UnauthenticatedError, with one message for
        unknown ids and wrong secrets; only a caller with the right secret learns that it expired or
        was revoked."""
        digest = digest_of(text)
        key = self._by_id.get(id_of(text))
        is_right = hmac.compare_digest(digest, _NOBODYS if key is None else key.digest)
        if key is None or not is_right:
            raise UnauthenticatedError(UNKNOWN)
        _check_good(key, now)
        return key

    def check(self, key_id: str, now: float) -> None:
        """Raises UnauthenticatedError if a key that was found once is good no longer."""
        key = self._by_id.get(key_id)
        if key is None:
            raise UnauthenticatedError(UNKNOWN)
        _check_good(key, now)


def without_long_dead(keys: Iterable[ApiKey], now: float) -> list[ApiKey]:
    """The keys but for those that have been good for nothing for DEAD_KEPT_S."""
    since = now - DEAD_KEPT_S
    return [
        key for key in keys if all(end is None or end > since for end in (key.revoked, key.expires))
    ]


def _check_good(key: ApiKey, now: float) -> None:
    if key.revoked is not None:
        raise UnauthenticatedError(f"the key {key.id} was revoked; ask for a new one")
    if key.expires is not None and now >= key.expires:
        raise UnauthenticatedError(f"the key {key.id} has expired; ask for a new one")


def require(scopes: Iterable[Scope], scope: Scope) -> None:
    """Raises PermissionDeniedError unless a credential's `scopes` include `scope`."""
    held = set(scopes)
    if scope not in held:
        names = ", ".join(sorted(it.value for it in held)) or "nothing"
        raise PermissionDeniedError(
            f"this credential is for {names}, not for {scope.value}; use one with that scope"
        )


# What the file holds, one JSON object for each key.


def to_row(key: ApiKey) -> dict[str, object]:
    """A key as a JSON object."""
    return {
        "id": key.id,
        "name": key.name,
        "digest": key.digest,
        "tenant": key.tenant,
        "scopes": sorted(scope.value for scope in key.scopes),
        "created": key.created,
        "expires": key.expires,
        "revoked": key.revoked,
        "max_priority": None if key.max_priority is None else key.max_priority.name.lower(),
        "models": list(key.models),
    }


_FIELDS: Final = frozenset(
    ("id", "name", "digest", "tenant", "scopes", "created", "expires", "revoked", "max_priority")
) | {"models"}


def of_row(row: object) -> ApiKey:
    """The key of a JSON object. Raises ConfigError."""
    if not isinstance(row, Mapping):
        raise ConfigError("each of keys is an object")
    where = f"key {str(row.get('id', ''))[:64]!r}"
    for name in row.keys() - _FIELDS:
        raise ConfigError(f"{where}: {str(name)[:64]!r} is no field of a key")
    return ApiKey(
        id=_text(row, "id", where),
        name=_text(row, "name", where),
        digest=_text(row, "digest", where),
        tenant=_text(row, "tenant", where),
        created=_time(row, "created", where) or 0.0,
        scopes=scopes_of(_texts(row, "scopes", where), where),
        expires=_time(row, "expires", where),
        revoked=_time(row, "revoked", where),
        max_priority=_priority(row, where),
        models=_texts(row, "models", where) if "models" in row else ALL_MODELS,
    )


def _text(row: Mapping[object, object], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"{where}: its {name} is text")
    return value


def _texts(row: Mapping[object, object], name: str, where: str) -> tuple[str, ...]:
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(it, str) for it in value):
        raise ConfigError(f"{where}: its {name} are a list of names")
    return tuple(value)


def _time(row: Mapping[object, object], name: str, where: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LATEST:
        raise ConfigError(f"{where}: {name} is a time in seconds since 1970, or null")
    return float(value)


def _priority(row: Mapping[object, object], where: str) -> Priority | None:
    value = row.get("max_priority")
    if value is None:
        return None
    try:
        return Priority[str(value).upper()]
    except KeyError:
        raise ConfigError(f"{where}: max_priority is low, medium or high") from None
