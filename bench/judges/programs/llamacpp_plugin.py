"""A plugin of pytest for llama.cpp's own tests: they use a server that is up (`DEBUG_EXTERNAL`),
under the paths and with the model's name that are ours."""

from __future__ import annotations

import os
from typing import Any

import utils  # type: ignore[import-not-found]

_PATHS = ("/chat/completions", "/completions", "/responses", "/models")


def _pointed_here(ask: Any) -> Any:
    def asks(server: Any, method: str, path: str, data: Any = None, **more: Any) -> Any:
        if isinstance(data, dict):
            data = {**data, "model": os.environ["OUTRIDER_MODEL"]}
        return ask(server, method, f"/v1{path}" if path in _PATHS else path, data, **more)

    return asks


utils.ServerPreset.load_all = lambda: None  # it would get models
utils.ServerProcess.make_request = _pointed_here(utils.ServerProcess.make_request)
utils.ServerProcess.make_stream_request = _pointed_here(utils.ServerProcess.make_stream_request)
