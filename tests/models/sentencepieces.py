"""Small SentencePiece models, trained here, and the GGUF files and tokenizer.json made of them."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from gguf import GGUFWriter, TokenType
from sentencepiece import sentencepiece_model_pb2

from tests.models import corpus
from tests.models.gguf_files import write_out

_CORPUS = [*corpus.LANGUAGES, *corpus.CODE, *corpus.EMOJI, "  a    b   ", "aaaa aaa aa", "ababab"]


@cache
def trained(
    *,
    byte_fallback: bool = True,
    prefix: bool = True,
    user_defined: tuple[str, ...] = (),
    crosses_words: bool = True,
) -> sentencepiece.SentencePieceProcessor:
    """A BPE model that changes no text, as those of Llama 2, Mistral and Gemma; with pieces of
    several words, unless not."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_CORPUS * 3),
        model_writer=out,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=byte_fallback,
        add_dummy_prefix=prefix,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_by_whitespace=not crosses_words,
        split_by_unicode_script=False,
        split_digits=False,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=list(user_defined),
        control_symbols=["<end_of_turn>"],
        character_coverage=0.98,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def piece_type(model: sentencepiece.SentencePieceProcessor, index: int) -> TokenType:
    """ggml numbers the types as SentencePiece does."""
    return TokenType(_proto(model.serialized_model_proto()).pieces[index].type)


@cache
def _proto(data: bytes) -> Any:
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(data)
    return proto


USER_DEFINED = ("\u2581\u2581", "<table>", "\n\n")
TEMPLATE = "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}"


def write_gguf(
    path: Path, pieces: sentencepiece.SentencePieceProcessor, /, *, prefix: bool, **changes: Any
) -> Path:
    """A GGUF file with the model's vocabulary and nothing else; a change of None leaves a field
    out."""
    writer = GGUFWriter(path, "llama")
    add_vocabulary(writer, pieces, prefix=prefix, **changes)
    write_out(writer)
    return path


def add_vocabulary(
    writer: GGUFWriter,
    pieces: sentencepiece.SentencePieceProcessor,
    /,
    *,
    prefix: bool,
    **changes: Any,
) -> None:
    """The fields of a file that is being written."""
    size = pieces.get_piece_size()
    fields: dict[str, Any] = {
        "model": "llama",
        "tokens": [pieces.id_to_piece(i) for i in range(size)],
        "scores": [pieces.get_score(i) for i in range(size)],
        "types": [piece_type(pieces, i) for i in range(size)],
        "prefix": prefix,
        "template": TEMPLATE,
    } | changes
    for name, add in (
        ("model", writer.add_tokenizer_model),
        ("tokens", writer.add_token_list),
        ("scores", writer.add_token_scores),
        ("types", writer.add_token_types),
        ("prefix", writer.add_add_space_prefix),
        ("template", writer.add_chat_template),
        ("remove_extra_whitespaces", writer.add_remove_extra_whitespaces),
    ):
        if fields.get(name) is not None:
            add(fields[name])
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())


def reordered(tokenizer_json: str, **changes: Any) -> str:
    """The same tokenizer written another way: keys in another order, spaces, merges as pairs, the
    parts that say nothing of ids."""
    spec = json.loads(tokenizer_json)
    spec["model"]["merges"] = [
        merge.split(" ") if isinstance(merge, str) else merge for merge in spec["model"]["merges"]
    ]
    spec["truncation"] = {
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
        "direction": "Right",
    }
    spec["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    spec |= changes
    return json.dumps(dict(reversed(spec.items())), indent=1)
