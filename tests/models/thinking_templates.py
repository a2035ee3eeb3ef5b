"""Small chat templates of models that think, written for these tests. Each behaves as that of its
family: when it shows earlier reasoning, how thinking is turned off, and how the prompt ends."""

from __future__ import annotations

from typing import Final

from outrider.models.bpe import VocabularyDefinition
from outrider.models.pre_tokenizers import pre_tokenizer_of
from outrider.models.vocabulary import Vocabulary
from tests.models.tool_templates import HERMES

_TOOLS: Final = HERMES.split("{%- for message in messages %}")[0]

QWEN3: Final = (
    _TOOLS
    + """
{%- set place = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set place.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > place.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
)
"""Shows the reasoning since the last message of the user; `enable_thinking` ends it at once."""

R1: Final = """
{{- '<|begin|>' }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- message.content }}
    {%- elif message.role == 'user' %}
        {{- '<|User|>' + message.content }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1] %}
        {%- endif %}
        {{- '<|Assistant|>' + content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|Assistant|><think>\\n' }}
{%- endif %}
"""
"""Always thinks: the prompt ends in <think>. Shows no earlier reasoning, has no variable."""

SMOLLM3: Final = """
{%- if enable_thinking is not defined %}{%- set enable_thinking = true %}{%- endif %}
{%- set mode = '/think' if enable_thinking else '/no_think' %}
{%- set custom = '' %}
{%- if messages[0].role == 'system' %}
    {%- set custom = messages[0].content %}
    {%- if '/no_think' in custom %}
        {%- set mode = '/no_think' %}
    {%- endif %}
    {%- set custom = custom.replace('/no_think', '').strip() %}
{%- endif %}
{{- '<|im_start|>system\\nReasoning Mode: ' + mode + '\\n' + custom }}
{%- for tool in xml_tools or [] %}
    {{- '\\n' + tool | string }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if mode == '/no_think' %}{{- '<think>\\n\\n</think>\\n' }}{%- endif %}
        {{- message.content.lstrip('\\n') + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if mode == '/no_think' %}{{- '<think>\\n\\n</think>\\n' }}{%- endif %}
{%- endif %}
"""
"""Turned off by `enable_thinking` or by the system's message; shows what earlier contents say."""

MAGISTRAL: Final = """
{{- '<s>[SYSTEM_PROMPT]Think between [THINK] and [/THINK].[/SYSTEM_PROMPT]' }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
    {%- elif message.role == 'user' %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- message.content + '</s>' }}
    {%- endif %}
{%- endfor %}
"""
"""Its tags are control tokens, which have no text of their own."""

FAMILIES: Final = {"qwen3": QWEN3, "r1": R1, "smollm3": SMOLLM3, "magistral": MAGISTRAL}
_CONTROL: Final = {
    QWEN3: ("<|im_end|>", "<|im_start|>"),
    R1: ("<|end|>", "<|begin|>", "<|User|>", "<|Assistant|>"),
    SMOLLM3: ("<|im_end|>", "<|im_start|>"),
    MAGISTRAL: (
        *("</s>", "<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        *("[THINK]", "[/THINK]"),
    ),
}
"""Control tokens; the first one ends a reply."""
_USER_DEFINED: Final = dict.fromkeys((QWEN3, SMOLLM3), ("<think>", "</think>"))


def vocabulary_of(template: str, like: str = "") -> Vocabulary:
    """One token per byte. The tags are control tokens with Magistral's template, text with R1's,
    and other tokens of their own with the rest. `like`: the template whose tokens it has."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    control, defined = _CONTROL[like or template], _USER_DEFINED.get(like or template, ())
    tokens = (*alphabet, *control, *defined)
    num_text = len(alphabet)
    num_control = num_text + len(control)
    return Vocabulary.from_definition(
        VocabularyDefinition(
            tokens=tokens,
            merges=(),
            pipeline=pre_tokenizer_of("gpt-2").pipeline,
            control_ids=tuple(range(num_text, num_control)),
            user_defined_ids=tuple(range(num_control, len(tokens))),
            stop_ids=(num_text,),
            bos_token="",
            eos_token=control[0],
            chat_template=template,
        )
    )


def reply_ids(vocabulary: Vocabulary, reply: str) -> tuple[int, ...]:
    """A reply as the model writes it, with its end: tags are control tokens where it has them."""
    ids: list[int] = []
    for segment in vocabulary.raw_segments(reply):
        if segment.is_token:
            ids.append(vocabulary.token_id(segment.text))
        else:
            ids += vocabulary.encode(segment.text)
    return (*ids, min(vocabulary.stop_ids))
