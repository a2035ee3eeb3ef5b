"""API keys for tests: the same text for the same name."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from outrider.access.api_keys import ApiKey, assemble, digest_of, id_of, to_row


def text_of(name: str) -> str:
    """The key of this name, as its owner has it."""
    digest = sha256(name.encode())
    return assemble(digest.hexdigest()[:12], digest.digest())


def key_of(name: str, tenant: str = "", **fields: Any) -> ApiKey:
    """What is kept of it; the tenant has its name if none is given."""
    text = text_of(name)
    return ApiKey(id_of(text), name, digest_of(text), tenant or name, **fields)


def write_keys(file: Path, *keys: ApiKey, revision: int = 1) -> None:
    """A file of these keys, in place of what is there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".new")
    rows = [to_row(key) for key in keys]
    scratch.write_text(json.dumps({"revision": revision, "keys": rows}), "utf-8")
    scratch.replace(file)
