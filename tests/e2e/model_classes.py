"""A small random model of each class of models that people bring: the architecture, the kind of
vocabulary with its flags, trained here, and a chat template in the class's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from gguf import GGUFWriter, TokenType

from outrider.models.chat import Message
from tests.fidelity.models import Shape, weights, write
from tests.models import gpt_oss_files
from tests.models.gpt_oss_files import GptOss
from tests.models.sentencepieces import add_vocabulary, piece_type, trained
from tests.models.thinking_templates import R1
from tests.models.tool_templates import CONTROL, HARMONY, MISTRAL
from tests.models.trained_bpe import trained as trained_bpe

CONTEXT: Final = 4096
SCALE: Final = 0.2
"""RMS of matrices: large enough that replies do not repeat one token."""
WEATHER: Final[Mapping[str, Any]] = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
_TALK: Final = (
    Message("user", "  Où va-t-il?\n\n    def f(x): return 2**x"),
    Message("assistant", "Là-bas, 🙂."),
    Message("user", "And 1234567 先驱者? </s> [INST]"),
)
LLAMA2: Final = """
{%- set system = '' %}
{%- set said = messages %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
    {%- set said = messages[1:] %}
{%- endif %}
{%- for message in said %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate, the user first') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- set content = (system if loop.first else '') + message['content'] %}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'].strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""
"""The system's message stands in the user's first one; roles alternate."""
_DEEPSEEK: Final = {
    "<|begin|>": "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "<|end|>": "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|User|>": "<\uff5cUser\uff5c>",
    "<|Assistant|>": "<\uff5cAssistant\uff5c>",
}
"""The names of R1's control tokens."""


_Tokenizer: TypeAlias = tuple[Callable[[GGUFWriter], None], int]
"""What writes a vocabulary into a file, and its size."""


@dataclass(frozen=True, slots=True)
class ModelClass:
    """A class of models, and a chat with it."""

    name: str
    write_to: Callable[[Path], Path]
    messages: tuple[Message, ...] = _TALK
    max_thinking_tokens: int = -1
    tool: Mapping[str, Any] = field(default_factory=dict)
    """One that the chat offers."""

    def write(self, folder: Path) -> Path:
        """The model's file."""
        return self.write_to(folder / f"{self.name}.gguf")


def _decoder(
    tokenizer: _Tokenizer, shape: Shape, *, biased: bool = False
) -> Callable[[Path], Path]:
    add, size = tokenizer
    whole = replace(shape, vocabulary=size, context=CONTEXT, width=256, inner=256)

    def write_to(path: Path) -> Path:
        tensors = weights(whole, tied=False, biased=biased, scale=SCALE)
        return write(path, whole, tensors, add_tokenizer=add)

    return write_to


def _gpt_oss(tokenizer: _Tokenizer) -> Callable[[Path], Path]:
    add, size = tokenizer
    shape = GptOss(
        vocabulary=size,
        experts=8,
        chosen=4,
        window=128,
        base=150_000.0,
        factor=32.0,
        original_context=CONTEXT // 32,
        context=CONTEXT,
    )
    return lambda path: gpt_oss_files.write(path, shape, gpt_oss_files.weights(shape), add)


def _llama2() -> _Tokenizer:
    """Runs of 2 to 16 spaces share one score below all others, as Llama 2's."""
    pieces = trained(crosses_words=False)
    size = pieces.get_piece_size()
    scores = {pieces.id_to_piece(i): pieces.get_score(i) for i in range(size)}
    scores |= dict.fromkeys(("\u2581" * num for num in range(1, 17)), -1e9)
    types = [piece_type(pieces, i) for i in range(size)]
    types += [TokenType.NORMAL] * (len(scores) - size)

    def add(writer: GGUFWriter) -> None:
        changes = {"tokens": list(scores), "scores": list(scores.values()), "types": types}
        add_vocabulary(writer, pieces, prefix=True, template=LLAMA2, **changes)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(False)

    return add, len(scores)


def _byte_level(
    pre: str,
    template: str,
    control: Sequence[str],
    user_defined: Sequence[str] = (),
    *,
    bos: str,
    eos: str,
    control_first: bool = False,
) -> _Tokenizer:
    texts, merges = trained_bpe(pre)
    parts = [
        (texts, TokenType.NORMAL),
        (control, TokenType.CONTROL),
        (user_defined, TokenType.USER_DEFINED),
    ]
    if control_first:
        parts = [*parts[1:], parts[0]]
    tokens = [text for some, _ in parts for text in some]

    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([kind for some, kind in parts for _ in some])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(tokens.index(bos))
        writer.add_eos_token_id(tokens.index(eos))
        writer.add_add_bos_token(True)
        writer.add_chat_template(template)

    return add, len(tokens)


def _r1_template() -> str:
    template = R1
    for short, name in _DEEPSEEK.items():
        template = template.replace(short, name)
    return template


_R1_TOKENS: Final = _byte_level(
    "deepseek-r1-qwen",
    _r1_template(),
    tuple(_DEEPSEEK.values()),
    ("<think>", "</think>"),
    bos=_DEEPSEEK["<|begin|>"],
    eos=_DEEPSEEK["<|end|>"],
)
_NEMO_TOKENS: Final = _byte_level(
    "tekken",
    MISTRAL,
    (
        *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"),
    ),
    bos="<s>",
    eos="</s>",
    control_first=True,
)
_GPT_OSS_TOKENS: Final = _byte_level(
    "gpt-4o",
    HARMONY,
    ("<|endoftext|>", *CONTROL[HARMONY]),
    bos="<|startoftext|>",
    eos="<|return|>",
)
CLASSES: Final = (
    ModelClass(
        "llama-2",
        _decoder(_llama2(), Shape(kv_heads=4, base=10_000.0)),
        messages=(Message("system", "Be brief."), *_TALK),
    ),
    ModelClass(
        "r1-distill-qwen",
        _decoder(_R1_TOKENS, Shape("qwen2", base=10_000.0), biased=True),
        max_thinking_tokens=300,
    ),
    ModelClass(
        "mistral-nemo",
        _decoder(_NEMO_TOKENS, Shape(own_head_size=32, base=1e6)),
        tool=WEATHER,
    ),
    ModelClass(
        "gpt-oss",
        _gpt_oss(_GPT_OSS_TOKENS),
        messages=(Message("system", "Be brief."), *_TALK),
        tool=WEATHER,
    ),
)
