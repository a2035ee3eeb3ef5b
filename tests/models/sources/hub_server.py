"""A real HTTP server on loopback that answers as a hub of models does: a listing of a revision, and
files at a commit behind a redirect to a storage; and that misbehaves on request."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.models.sources.web_server import listening

COMMITS = ("a" * 40, "b" * 40)


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass
class Hub:
    """One repository."""

    files: dict[str, bytes]
    commit: str = COMMITS[0]
    older: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files of other commits."""
    lfs: tuple[str, ...] = (".safetensors", ".bin", "tokenizer.json")
    """Endings of the names of files in Git LFS."""
    listed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changes of what the listing says of a file, or of a file more."""
    listing: bytes | None = None
    """In place of the listing."""
    sent: dict[str, bytes] = field(default_factory=dict)
    """Bytes in place of a file's."""
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """After how many bytes the connection breaks, one for each request of the file."""
    statuses: dict[str, list[int]] = field(default_factory=dict)
    """Answered first."""
    redirects: dict[str, str] = field(default_factory=dict)
    """Where a file's address leads instead of to the storage."""
    claims: dict[str, str] = field(default_factory=dict)
    """SHA-256 that the hub claims of a file's bytes."""
    ignores_ranges: bool = False
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method-free: path, authorization, range."""
    url: str = ""

    def fetched(self) -> list[str]:
        """Names of the files whose bytes were asked for, in order."""
        return [path.rsplit("/", 1)[1] for path, _, _ in self.requests if "/storage/" in path]

    def answer(self, commit: str) -> bytes:
        if self.listing is not None:
            return self.listing
        files = self.files if commit == self.commit else self.older[commit]
        entries = [self._entry(name, data) for name, data in files.items()]
        extra = [{"rfilename": n} | e for n, e in self.listed.items() if n not in files]
        return json.dumps({"id": "org/name", "sha": commit, "siblings": entries + extra}).encode()

    def _entry(self, name: str, data: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {
            "rfilename": name,
            "size": len(data),
            "blobId": git_sha1(data),
        }
        if name.endswith(self.lfs):
            sha256 = hashlib.sha256(data).hexdigest()
            found["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 134}
        return found | self.listed.get(name, {})


def hub_of(folder: Path, **changes: Any) -> Hub:
    """With a folder's files and some that belong to no model."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    others = {"README.md": b"# x", ".gitattributes": b"*", "pytorch_model.bin": b"pickle"}
    return Hub({"../../escape": b"x", "sub/config.json": b"{}", **others, **files}, **changes)


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    """Serve it while the block runs; its `url` is set."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    with listening(Handler) as hub.url:
        yield hub


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        hub = self.hub
        authorization = self.headers.get("Authorization", "")
        hub.requests.append((self.path, authorization, self.headers.get("Range")))
        if match := re.fullmatch(r"/api/models/org/name/revision/(\w+)\?blobs=true", self.path):
            commit = hub.commit if match[1] in ("main", hub.commit) else match[1]
            if commit != hub.commit and commit not in hub.older:
                self._send(404, b"{}")
                return
            self._send(200, hub.answer(commit))
        elif match := re.fullmatch(r"/org/name/resolve/(\w+)/(.*)", self.path):
            target = hub.redirects.get(match[2], f"/storage/{match[1]}/{match[2]}")
            claim = hub.claims.get(match[2])
            claimed = {} if claim is None else {"X-Linked-Etag": f'"{claim}"'}
            self._send(302, b"", {"Location": target, **claimed})
        elif match := re.fullmatch(r"/storage/(\w+)/(.*)", self.path):
            self._send_file(match[1], match[2])
        else:
            self._send(404, b"no such address")

    def _send_file(self, commit: str, name: str) -> None:
        hub = self.hub
        if hub.statuses.get(name):
            self._send(hub.statuses[name].pop(0), b"")
            return
        files = hub.files if commit == hub.commit else hub.older[commit]
        if name not in files:
            self._send(404, b"no such file")
            return
        data = hub.sent.get(name, files[name])
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()[:8]}"'}
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = 0
        if match and not hub.ignores_ranges and self.headers.get("If-Range") == headers["ETag"]:
            start = int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cut = hub.cuts[name].pop(0) if hub.cuts.get(name) else None
        self._send(206 if start else 200, data[start:], headers, cut)

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None,
        cut: int | None = None,
    ) -> None:  # fmt: skip
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""
