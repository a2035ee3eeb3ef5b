"""Draft for a mesh's model by a model of your own with the same vocabulary, in the interface of
Hugging Face's transformers: what is called with ids and answers with `logits`.

OUTRIDER_API_KEY=or_... python examples/verify_model.py HOST:HTTP_PORT CA.pem MODEL_FOLDER "Why?"

`-` in place of the certificate: without TLS, as edges serve HTTP on the loopback. Needs
`pip install torch transformers`; `GreedyDrafter` itself needs neither.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.models.chat import Message
from outrider.verify_client import VerifyClient


class GreedyDrafter:
    """Drafts the likeliest tokens, one after the other, as long as they are likely enough."""

    def __init__(self, model: Any, batch: Any, *, min_probability: float = 0.4) -> None:
        """`model(batch(ids)).logits` has the shape [1, len(ids), vocabulary]."""
        self._model = model
        self._batch = batch
        self._min_probability = min_probability

    def draft(self, ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """See outrider.verify_client.Drafter. A few tokens at a time: while these are on their way,
        the next are made."""
        text, drafts = list(ids), list[int]()
        for _ in range(min(max_tokens, 4)):
            scores = self._model(self._batch(text)).logits[0][-1]
            token = int(scores.argmax())
            shifted = scores - scores[token]
            if 1.0 / float(_exp(shifted).sum()) < self._min_probability:
                break
            drafts.append(token)
            text.append(token)
        return drafts


def _exp(values: Any) -> Any:
    """Of a tensor of torch, or of an array of numpy, whose own way this is, too."""
    return values.exp() if hasattr(values, "exp") else 2.718281828459045**values


async def ask(edge: str, ca: str, folder: str, question: str) -> None:
    """The key is that of OUTRIDER_API_KEY."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    drafter = GreedyDrafter(model, lambda ids: torch.tensor([ids]))
    key = os.environ.get("OUTRIDER_API_KEY", "")
    where = {"insecure": True} if ca == "-" else {"ca": Path(ca)}
    async with VerifyClient([edge], key=key, **where) as mesh:
        session = mesh.verify([Message("user", question)], drafter, max_drafts=8)
        async for tokens in session:
            print(tokens.text, end="", flush=True)
    reply = session.reply
    print(f"\n{reply.num_accepted} of {len(reply.ids)} tokens as drafted", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(ask(*sys.argv[1:5]))
