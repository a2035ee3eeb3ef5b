"""The texts that fidelity is measured on: what people read and what an instruct model answers.

`data/NAME.txt` is plain text, or a chat: then each message follows a line `### ROLE`, the last one
is the assistant's, and the model's own chat template stands around them. Drafts and thresholds are
made from other texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

import numpy as np

from outrider.engines.base import Ids
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary

_TURN: Final = re.compile(r"^### (system|user|assistant)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Text:
    """One document."""

    name: str
    content: str
    """The text; in a chat, each message follows a line with its role."""

    @property
    def messages(self) -> list[Message]:
        """Messages of a chat, in order; none for plain text."""
        _, *parts = _TURN.split(self.content)
        pairs = zip(parts[0::2], parts[1::2], strict=True)
        return [Message(role, content.removesuffix("\n")) for role, content in pairs]

    def encode(self, vocabulary: Vocabulary) -> Ids:
        """[n] ids, as a service would have them: prompt and reply. A chat is plain text to a model
        that has no template."""
        messages = self.messages
        if not messages:
            ids = vocabulary.encode(self.content)
        elif not vocabulary.chat_template:
            ids = vocabulary.encode("\n\n".join(message.content for message in messages))
        else:
            *prompt, reply = messages
            ids = vocabulary.encode_chat(prompt) + vocabulary.encode_reply(reply.content)
        return np.array(ids, np.int32)


@cache
def shipped() -> tuple[Text, ...]:
    """The documents of this package, by name."""
    folder = files("outrider.fidelity") / "data"
    found = sorted((file.name, file.read_text("utf-8")) for file in folder.iterdir())
    return tuple(Text(name.removesuffix(".txt"), content) for name, content in found)
