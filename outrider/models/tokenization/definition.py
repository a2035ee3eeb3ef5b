"""What a byte-level BPE vocabulary is, free of file formats and libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import ArtifactCorruptError


@dataclass(frozen=True, slots=True)
class VocabularyDefinition:
    """Everything that decides which ids a text or a chat becomes.

    Raises ArtifactCorruptError at construction when the parts contradict each other.
    """

    tokens: Sequence[str]
    """[size] token texts in GPT-2's byte alphabet; the index is the id."""
    merges: Sequence[str]
    """BPE merges, "left right", in rank order."""
    pre_tokenizer: str
    """The name that llama.cpp gave to normalizer and pre-tokenizer (`tokenizer.ggml.pre`)."""
    control_ids: Sequence[int]
    """Ids that steer the model and never stand for text."""
    user_defined_ids: Sequence[int]
    """Ids of texts that are matched before BPE and are ordinary text."""
    stop_ids: Sequence[int]
    """Ids that end a reply."""
    bos_token: str
    """Text of the token that the chat template calls bos_token; may be empty."""
    eos_token: str
    chat_template: str
    """Jinja source; empty if the model has none."""

    def __post_init__(self) -> None:
        size = len(self.tokens)
        if len(set(self.tokens)) != size:
            raise ArtifactCorruptError("two token ids of the vocabulary have the same text")
        listed = (*self.control_ids, *self.user_defined_ids, *self.stop_ids)
        if not all(0 <= i < size for i in listed):
            raise ArtifactCorruptError("a special token id lies outside the vocabulary")
        if any(merge.count(" ") != 1 for merge in self.merges):
            raise ArtifactCorruptError("a BPE merge is not a pair of tokens")
