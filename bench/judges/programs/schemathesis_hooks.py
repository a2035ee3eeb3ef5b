"""Hooks of schemathesis (`SCHEMATHESIS_HOOKS`): requests get what no document can tell, and answers
are counted.

A request that was made to fit the document names a model by chance only, and its conversation has
roles of random letters, so that next to none would reach a replica. All of these get the name of a
model that is served, and every other one a conversation that can be answered; the other fields stay
as they were made. Requests that were made not to fit stay as they are.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import schemathesis  # type: ignore[import-not-found]
from schemathesis.core.failures import ServerError  # type: ignore[import-not-found]

_MODEL = os.environ["OUTRIDER_MODEL"]
_STATUSES = Path(os.environ["OUTRIDER_STATUSES"])
_ANSWERABLE = {"messages": [{"role": "user", "content": "hi"}], "input": "hi", "prompt": "hi"}
_LEFT_OUT = ("tools", "tool_choice", "functions", "response_format", "modalities", "text", "audio")
"""Beside such a conversation: fields of which random values make sense to no model."""
_NUMBERS = itertools.count()


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Changes the body."""
    body = case.body
    if not isinstance(body, dict) or not case.meta.generation.mode.is_positive:
        return
    body["model"] = _MODEL
    if next(_NUMBERS) % 2:
        for name in _LEFT_OUT:
            body.pop(name, None)
        body.update({name: value for name, value in _ANSWERABLE.items() if name in body})


@schemathesis.hook  # type: ignore[untyped-decorator]
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Whether it counts. A request may ask for what cannot be: a reply within a millisecond, or
    regions of random letters, in which there is no replica."""
    body = case.body
    if not isinstance(failure, ServerError) or not isinstance(body, dict):
        return True
    too_soon = response.status_code == 504 and body.get("deadline_ms")
    nowhere = response.status_code == 503 and body.get("residency")
    return not too_soon and not nowhere


@schemathesis.hook  # type: ignore[untyped-decorator]
def after_call(context: Any, case: Any, response: Any) -> None:
    """Counts the answer."""
    with _STATUSES.open("a", encoding="ascii") as file:
        file.write(f"{response.status_code}\n")
