"""The default model with a chat template of its own that shows tools: nobody trained it to call
them, but it goes on with what it is shown."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.models.catalog import DEFAULT_MODEL, ModelSpec
from outrider.models.store import ModelStore

STOP_TOKENS = ("<|im_start|>",)
TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\nCall these functions: ' + (tools | tojson) + '<|im_end|>\\n' }}
    {%- for city in ['Rome', 'Oslo', 'Lima'] %}
        {{- '<|im_start|>user\\nIs it cold in ' + city + '?<|im_end|>\\n<|im_start|>assistant\\n' }}
        {{- '<tool_call>{"name": "get_weather", "arguments": {"city": "' + city + '"}}' }}
        {{- '</tool_call><|im_end|>\\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls %}
        {{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
"""


@contextmanager
def own_template(store: ModelStore, folder: Path) -> Iterator[Path]:
    """A file with it; what the machine's store keeps of it is removed again."""
    file = folder / "template.jinja"
    file.write_text(TEMPLATE, "utf-8")
    yield file
    key = ModelSpec("", "", chat_template=TEMPLATE, stop_tokens=STOP_TOKENS).vocabulary_key()
    for kept in (store.root / "derived" / DEFAULT_MODEL.sha256).glob(f"*-{key}"):
        shutil.rmtree(kept)
