"""The specifications of other APIs, as llm-comply carries them.

Anthropic's lists fields as always there whose default is null. Its replies leave them out, and so
do ours: here they need not be there.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import llm_comply
from llm_comply.schema import SpecLoader

_SPECS = Path(llm_comply.__file__).parent / "specs"


@cache
def _loaded(name: str) -> SpecLoader:
    loaded = SpecLoader(str(_SPECS / name))
    for schema in map(loaded.get_schema, loaded.schema_names):
        if schema is not None and "required" in schema:
            fields = schema.get("properties", {})
            schema["required"] = [
                it for it in schema["required"] if fields.get(it, {}).get("default", "") is not None
            ]
    return loaded


def anthropic_faults(data: Any, schema: str) -> list[str]:
    """What of this is not as the Anthropic API has it."""
    return _faults("anthropic.json", data, schema)


def responses_faults(data: Any, schema: str) -> list[str]:
    """What of this is not as Open Responses has it."""
    return _faults("openresponses.json", data, schema)


def event_faults(data: dict[str, Any]) -> list[str]:
    """What of an event's data is not as Open Responses has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its way to resolve references
        faults: list[str] = _loaded("openresponses.json").validate_sse_event(data["type"], data)
    return faults


def _faults(name: str, data: Any, schema: str) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        faults: list[str] = _loaded(name).validate(data, schema)
    return faults
