"""Requests of the arrival benchmarks, from prompts not asked before."""

from __future__ import annotations

from collections.abc import Sequence

from bench.harness.load import Request
from bench.harness.prompts import PromptSupply
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary

LONG_TOKENS = range(1300, 1800)
"""Lengths of a document that count as about 1,500 tokens."""


class RequestFactory:
    """Makes requests; every chat has a system message of its own."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._chats = PromptSupply("chat")
        self._documents = PromptSupply("long_document")
        self._num_made = 0

    def texts(self, count: int) -> list[str]:
        """User messages for `requests`. Raises RuntimeError when there are no more."""
        return self._chats.take(count)

    def chats(self, due_s: Sequence[float], max_tokens: int) -> tuple[Request, ...]:
        """One new chat at each time. Raises RuntimeError when there are no more."""
        return self.requests(self.texts(len(due_s)), due_s, max_tokens)

    def requests(
        self, texts: Sequence[str], due_s: Sequence[float], max_tokens: int
    ) -> tuple[Request, ...]:
        """These user messages at these times."""
        made = []
        for text, due in zip(texts, due_s, strict=True):
            self._num_made += 1
            made.append(Request(self._ids(text), max_tokens, due, seed=self._num_made))
        return tuple(made)

    def documents(self, due_s: Sequence[float], max_tokens: int) -> tuple[Request, ...]:
        """One new document at each time. Raises RuntimeError when there are no more."""
        return tuple(Request(self._document(), max_tokens, due) for due in due_s)

    def _document(self) -> tuple[int, ...]:
        while True:
            (text,) = self._documents.take(1)
            ids = self._ids(text)
            if len(ids) in LONG_TOKENS:
                return ids

    def _ids(self, text: str) -> tuple[int, ...]:
        system = Message("system", f"{self._num_made:05d} is this chat. Be helpful.")
        return tuple(self._vocabulary.encode_chat([system, Message("user", text)]))
