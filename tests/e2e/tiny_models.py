"""Small random models that a mesh serves by the same engine as real ones, and loads in a second.
What they say is nonsense, and as exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf

from tests.fidelity.models import Shape, weights, write

SHAPE = Shape(vocabulary=96, width=256, inner=256, base=10_000.0)
VOCABULARY = [*map(chr, range(0x21, 0x7F)), "\u0120", "ab"]
"""What can be printed, a space as files of this kind write it, and the one merge."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write_tiny(
    file: Path, scale: float, context: int = SHAPE.context, template: str = TEMPLATE
) -> Path:
    """Another `scale` of the weights makes another model."""
    shape = replace(SHAPE, context=context)

    def add_template(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(template)

    write(
        file,
        shape,
        weights(shape, scale=scale),
        vocabulary=VOCABULARY,
        add_tokenizer=add_template,
    )
    return file
