"""The API key that `outrider up` makes for developers on this machine."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from outrider.access import keys_file
from outrider.access.api_keys import USER_SCOPES, ApiKey, Scope, digest_of, id_of
from outrider.access.client_key import DEVELOPMENT_KEY
from outrider.cli.keys import make
from outrider.cli.local.mesh import KEYS_FILE, MeshOptions
from outrider.cli.local.state import RunningMesh, write_private

NAME: Final = "development"
"""Name of the key, and of its tenant."""
_QUESTION: Final = "Why is the sky blue?"


def read(state_dir: Path) -> str:
    """The key of the mesh in a folder; "" without one."""
    try:
        return (state_dir / DEVELOPMENT_KEY).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def ensure(state_dir: Path) -> tuple[str, bool]:
    """The key of the mesh in a folder, and whether it has just been made: one that was revoked or
    has gone from the file of keys is made anew. Raises ConfigError."""
    now = time.time()
    text = read(state_dir)
    file = state_dir / KEYS_FILE
    if text and any(_is_same(key, text, now) for key in keys_file.read(file).keys):
        return text, False
    # Whoever runs this mesh may see how it does.
    made = make(NAME, now, scopes=USER_SCOPES | {Scope.MESH})

    def edit(keys: tuple[ApiKey, ...]) -> Iterable[ApiKey]:
        return (*keys, made.key)

    keys_file.change(file, edit)
    write_private(state_dir / DEVELOPMENT_KEY, f"{made.text}\n")
    return made.text, True


def _is_same(key: ApiKey, text: str, now: float) -> bool:
    is_live = key.revoked is None and (key.expires is None or now < key.expires)
    return is_live and key.id == id_of(text) and key.digest == digest_of(text)


def has_own_file(options: MeshOptions) -> bool:
    """Whether the mesh's options name a keys file; its owner then makes the keys."""
    access = options.tables.get("edge", {}).get("access", {})
    named = isinstance(access, dict) and "keys_file" in access
    settings = (one.partition("=")[0].replace("-", "_") for one in options.settings_of("edge"))
    return named or "access.keys_file" in {name.strip() for name in settings}


def curl_line(url: str, key: str, model: str, *, embeds: bool = False) -> str:
    """A command for a shell that asks a question over HTTP, or for its vector where the model makes
    such. `key` is put in as it is, so that it may be a `$(cat FILE)`."""
    path = "embeddings" if embeds else "chat/completions"
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "{_QUESTION}"}}]}}'
    if embeds:
        body = f'{{"model": "{model}", "input": "{_QUESTION}"}}'
    return (
        f'curl {shlex.quote(url)}/v1/{path} -H "Authorization: Bearer {key}" '
        f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def http_url(mesh: RunningMesh) -> str:
    """Base URL of the edge's HTTP server; "" if it has none."""
    port = mesh.service("edge").get("http_port")
    return f"http://{mesh.host}:{port}" if port else ""


def welcome(mesh: RunningMesh, state_dir: Path, key: str, *, is_new: bool) -> list[str]:
    """Lines about the key for the user when the mesh is up. A new key is shown, this once."""
    path = state_dir / DEVELOPMENT_KEY
    lines = [f"API key, shown once, kept in {path}: {key}" if is_new else f"API key: in {path}"]
    if url := http_url(mesh):
        shown = key if is_new else f"$(cat {shlex.quote(str(path))})"
        first = mesh.models[0]
        lines.append(curl_line(url, shown, first["name"], embeds=first["embeds"]))
    return lines
