"""Small chat templates, one in the form of each family that calls tools, written for these tests,
and what Hugging Face's own set-up of Jinja makes of any template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jinja2.ext
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.models.bpe import VocabularyDefinition
from outrider.models.pre_tokenizers import pre_tokenizer_of
from outrider.models.vocabulary import Vocabulary

HERMES: Final = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n' }}
    {%- endif %}
    {{- 'Tools:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\nCall them as <tool_call>{"name": ..., "arguments": ...}</tool_call>' }}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
THINKING: Final = HERMES.replace(
    "{%- if message.content %}",
    "{%- if message.reasoning_content is string %}\n"
    "            {{- '\\n<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}\n"
    "        {%- endif %}\n        {%- if message.content %}",
)
LLAMA3: Final = """
{{- bos_token }}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + system_message }}
{%- if tools is not none %}
    {{- 'Answer with {"name": function name, "parameters": its arguments}.\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- '\\n\\n' }}
    {%- endfor %}
{%- endif %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {{- { 'output': message.content } | tojson }}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('This model only calls one tool at once!') }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n<|python_tag|>' }}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL: Final = """
{{- bos_token }}
{%- set user_messages = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and message == user_messages[-1] %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != 'return' %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val | tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ', ' }}
                    {%- endif %}
                {%- endfor %}
                {{- '}}' }}
                {%- if not loop.last %}
                    {{- ', ' }}
                {%- endif %}
            {%- endfor %}
            {{- '][/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined %}
        {{- '[TOOL_CALLS] [' }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception('Tool call IDs should be alphanumeric, of length 9!') }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ', ' }}
            {%- endif %}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' }}
        {{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""
MISTRAL_ARGS: Final = """
{{- bos_token }}
{%- if tools %}
    {{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- message.content }}
        {%- for call in message.tool_calls %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}
            {{- call.function.arguments | tojson }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""
HARMONY: Final = """
{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort | default('medium')) }}
{{- '\\n\\n# Valid channels: analysis, commentary, final.<|end|>' }}
{%- set told = messages[0].role in ('system', 'developer') %}
{%- if told or tools %}
    {{- '<|start|>developer<|message|>' }}
    {%- if told %}
        {{- '# Instructions\\n\\n' + messages[0].content + '\\n\\n' }}
    {%- endif %}
    {%- if tools %}
        {{- '# Tools\\n\\nnamespace functions {\\n' }}
        {%- for tool in tools %}
            {{- 'type ' + tool.function.name + ' = (_: ' }}
            {{- (tool.function.parameters or {}) | tojson }}
            {{- ') => any;\\n' }}
        {%- endfor %}
        {{- '}' }}
    {%- endif %}
    {{- '<|end|>' }}
{%- endif %}
{%- for message in (messages[1:] if told else messages) %}
    {%- if message.role == 'user' %}
        {{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start|>functions.' + message.name + ' to=assistant<|channel|>commentary' }}
        {{- '<|message|>' + (message.content | tojson) + '<|end|>' }}
    {%- elif message.tool_calls %}
        {%- if message.content %}
            {{- '<|start|>assistant<|channel|>commentary<|message|>' + message.content }}
            {{- '<|end|>' }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {{- '<|start|>assistant to=functions.' + call.function.name }}
            {{- '<|channel|>commentary json<|message|>' }}
            {{- call.function.arguments | tojson }}
            {{- '<|call|>' }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant' }}
{%- endif %}
"""
PLAIN: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CHATML: Final = ("<|im_start|>", "<|im_end|>")
_MISTRAL: Final = (
    *("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
_HARMONY: Final = (
    *("<|return|>", "<|startoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>"),
    *("<|constrain|>", "<|call|>"),
)
CONTROL: Final[Mapping[str, tuple[str, ...]]] = {
    HERMES: _CHATML,
    THINKING: _CHATML,
    PLAIN: _CHATML,
    LLAMA3: (
        *("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        "<|python_tag|>",
    ),
    MISTRAL: _MISTRAL,
    MISTRAL_ARGS: _MISTRAL,
    HARMONY: _HARMONY,
}
"""The control tokens of each template's vocabulary; the end of a reply is one of the first two."""
_ENDS: Final = {"<|im_start|>": "<|im_end|>"}
FAMILIES: Final = {
    "hermes": HERMES,
    "thinking": THINKING,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "mistral_args": MISTRAL_ARGS,
    "harmony": HARMONY,
}


def variables(template: str) -> dict[str, str]:
    """bos_token and eos_token."""
    first, second, *_ = CONTROL[template]
    return {"bos_token": "" if first in _ENDS else second, "eos_token": _ENDS.get(first, first)}


def vocabulary_of(template: str) -> Vocabulary:
    """One token per byte, and the template's control tokens."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    control = CONTROL[template]
    tokens = (*alphabet, *control)
    named = variables(template)
    return Vocabulary.from_definition(
        VocabularyDefinition(
            tokens=tokens,
            merges=(),
            pipeline=pre_tokenizer_of("gpt-2").pipeline,
            control_ids=tuple(range(len(alphabet), len(tokens))),
            user_defined_ids=(),
            stop_ids=(tokens.index(named["eos_token"]),),
            bos_token=named["bos_token"],
            eos_token=named["eos_token"],
            chat_template=template,
        )
    )


def as_transformers_does(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    add_generation_prompt: bool = True,
    **given: Any,
) -> str:
    """What `PreTrainedTokenizer.apply_chat_template` of transformers 5 renders, which sets Jinja up
    like this (utils/chat_template_utils.py)."""

    def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    return environment.from_string(template).render(
        messages=messages,
        tools=tools,
        documents=None,
        add_generation_prompt=add_generation_prompt,
        **(variables(template) if template in CONTROL else {}),
        **given,
    )
