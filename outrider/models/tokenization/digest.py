"""The vocabulary digest: two sides with equal digests mean the same by every id and every chat.

SHA-256 over a canonical form that depends on no library's serialisation, so it is the same in
every process and after every library update.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Final

from outrider.models.tokenization.definition import VocabularyDefinition
from outrider.models.tokenization.pipeline import pipeline_of

_FORM: Final = 1
"""Version of the canonical form; part of it."""


def canonical_form(definition: VocabularyDefinition) -> bytes:
    """ASCII JSON with sorted keys: BPE model, added tokens, normalizer and pre-tokenizer, stop
    ids, chat template and its variables. Raises ConfigError for an unknown pipeline."""
    added = [(i, True) for i in definition.control_ids]
    added += [(i, False) for i in definition.user_defined_ids]
    form = {
        "form": _FORM,
        "model": {
            "type": "byte-level BPE",
            "tokens": list(definition.tokens),
            "merges": list(definition.merges),
        },
        "added_tokens": [
            {"id": i, "text": definition.tokens[i], "special": special}
            for i, special in sorted(added)
        ],
        "pipeline": asdict(pipeline_of(definition.pre_tokenizer)),
        "stop_ids": sorted(definition.stop_ids),
        "chat": {
            "template": definition.chat_template,
            "bos_token": definition.bos_token,
            "eos_token": definition.eos_token,
        },
    }
    return json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def vocabulary_digest(definition: VocabularyDefinition) -> bytes:
    """SHA-256 [32] of the canonical form."""
    return hashlib.sha256(canonical_form(definition)).digest()
