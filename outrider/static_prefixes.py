"""Static prefixes: beginnings of prompts that the operator knows many chats share. Their settings
and their token ids (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from outrider.access.api_keys import check_label, check_listed
from outrider.errors import ConfigError, InvalidRequestError
from outrider.models.chat import Message

MAX_PREFIXES: Final = 64
"""Every session that opens compares its tenant with each of them."""


@dataclass(frozen=True, slots=True)
class PrefixMessage:
    """One message of a prefix."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class StaticPrefixConfig:
    """A beginning of prompts that is computed ahead of time and kept (`[[inference.prefixes]]`,
    `[[edge.prefixes]]`)."""

    name: str
    """Unique; shown by `outrider prefixes`."""
    tenants: tuple[str, ...] = ()
    """Names of the tenants whose chats may use it; ["*"] is all. Required, because such a chat
    reveals that it begins with this prefix, by its cached_tokens and by its time to first token."""
    system: str = ""
    """A system prompt."""
    messages: tuple[PrefixMessage, ...] = ()
    """Alternatively, the first messages of a chat. If the last one is the user's, chats continue
    inside it."""
    model: str = ""
    """Only for this model; empty: for any."""

    def __post_init__(self) -> None:
        check_label(self.name, "a prefix's name")
        if not self.tenants:
            raise ConfigError(
                f'prefix {self.name} has no tenants: name those whose chats may use it, or ["*"] '
                "for all (they can find out that the prefix is registered)"
            )
        check_listed(self.tenants, f"tenants of prefix {self.name}")
        if bool(self.system) == bool(self.messages):
            raise ConfigError(f"prefix {self.name}: give either system or messages")

    @property
    def all_messages(self) -> tuple[PrefixMessage, ...]:
        """Messages, whichever way they are given."""
        return self.messages or (PrefixMessage("system", self.system),)


def check_prefixes(prefixes: Sequence[StaticPrefixConfig]) -> None:
    """Raises ConfigError for two of one name and model, and for too many."""
    if len(prefixes) > MAX_PREFIXES:
        raise ConfigError(f"there are {len(prefixes)} prefixes; give at most {MAX_PREFIXES}")
    names = [(prefix.name, prefix.model) for prefix in prefixes]
    for name, model in names:
        if names.count((name, model)) > 1:
            raise ConfigError(f"prefix {name} is defined twice; give each a name of its own")


_PROBES: Final = ("Hello", "1")
"""Two different continuations of a user's message; the prefix is what the two prompts share."""


class Templates(Protocol):
    """A vocabulary with a chat template (outrider.models.vocabulary.Vocabulary)."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...


def prefix_ids(config: StaticPrefixConfig, templates: Templates) -> tuple[int, ...]:
    """Token ids shared by all chats that begin with these messages. If the last message is the
    user's, their text may continue it; otherwise a user message follows."""
    messages = [Message(message.role, message.content) for message in config.all_messages]
    head, begun = messages, ""
    if messages[-1].role == "user":
        head, begun = messages[:-1], messages[-1].content
    try:
        one, other = (
            templates.encode_chat([*head, Message("user", begun + probe)]) for probe in _PROBES
        )
    except InvalidRequestError as error:
        raise ConfigError(
            f"prefix {config.name} is not what a chat of this model can begin with: {error.message}"
        ) from error
    num_same = next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other)
    )
    if not num_same:
        raise ConfigError(f"prefix {config.name}: chats that begin with it have no token in common")
    return tuple(one[:num_same])
