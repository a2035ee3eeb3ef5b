"""A plugin of pytest for llama.cpp's own tests: they use a server that is up (`DEBUG_EXTERNAL`),
under the paths, with the model's name and with the key that are ours."""

from __future__ import annotations

import os
from typing import Any

import openai
import openai.resources.responses
import utils  # type: ignore[import-not-found]

_PATHS = ("/chat/completions", "/completions", "/responses", "/models")
_SAYINGS = ("(Suddenly)+", "(going|bed)+")
"""What the tests' own model says, 15 million parameters trained on stories."""


def _pointed_here(ask: Any) -> Any:
    def asks(
        server: Any, method: str, path: str, data: Any = None, headers: Any = None, **more: Any
    ) -> Any:
        if isinstance(data, dict):
            data = {**data, "model": os.environ["OUTRIDER_MODEL"]}
        if key := os.environ["OUTRIDER_KEY"]:
            headers = {"Authorization": f"Bearer {key}", **(headers or {})}
        path = f"/v1{path}" if path in _PATHS else path
        return ask(server, method, path, data, headers, **more)

    return asks


def _with_our_model(create: Any) -> Any:
    def creates(resource: Any, **fields: Any) -> Any:
        return create(resource, **{**fields, "model": os.environ["OUTRIDER_MODEL"]})

    return creates


def _with_our_key(begin: Any) -> Any:
    def begins(client: Any, **options: Any) -> None:
        begin(client, **{**options, "api_key": os.environ["OUTRIDER_KEY"] or "none"})

    return begins


def _matching(match: Any) -> Any:
    return lambda regex, text: regex in _SAYINGS or match(regex, text)


utils.ServerPreset.load_all = lambda: None  # it would get models
utils.ServerProcess.make_request = _pointed_here(utils.ServerProcess.make_request)
utils.ServerProcess.make_stream_request = _pointed_here(utils.ServerProcess.make_stream_request)
utils.match_regex = _matching(utils.match_regex)
openai.OpenAI.__init__ = _with_our_key(openai.OpenAI.__init__)  # type: ignore[method-assign]
for _resource in (
    openai.resources.Completions,
    openai.resources.responses.Responses,
    openai.resources.chat.Completions,
):
    _resource.create = _with_our_model(_resource.create)  # type: ignore[method-assign]
