"""How many tokens a prompt has, in the words of the APIs that ask for it. Nothing is computed but
the prompt's tokens."""

from __future__ import annotations

import msgspec

from services.edge.http import anthropic_messages, responses
from services.edge.http.anthropic_messages import TokenCount
from services.edge.http.exchange import Exchange
from services.edge.http.responses import InputTokens
from services.edge.http.tokenizing import num_prompt_tokens


async def serve_count_tokens(exchange: Exchange) -> None:
    """Answer POST /v1/messages/count_tokens of the Anthropic API. Raises OutriderError."""
    request = anthropic_messages.COUNTS.read(await exchange.body())
    said = anthropic_messages.conversation_of(request)
    count = await num_prompt_tokens(exchange, request.body.model or "", said)
    data = msgspec.json.encode(TokenCount(input_tokens=count))
    headers = exchange.rate_headers() | request.passed_over.headers
    await exchange.answer(200, data, headers=headers)


async def serve_input_tokens(exchange: Exchange) -> None:
    """Answer POST /v1/responses/input_tokens of the OpenAI API. Raises OutriderError."""
    request = responses.COUNTS.read(await exchange.body())
    said = responses.conversation_of(request)
    count = await num_prompt_tokens(exchange, request.body.model or "", said)
    data = msgspec.json.encode(InputTokens(input_tokens=count))
    headers = exchange.rate_headers() | request.passed_over.headers
    await exchange.answer(200, data, headers=headers)
