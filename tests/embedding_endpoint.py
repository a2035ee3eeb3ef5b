"""An HTTP endpoint of embeddings, as `outrider embed` asks one."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_BYTES = 2 << 20


class EmbeddingEndpoint(ThreadingHTTPServer):
    """The vector of a text is its length and its last byte. A model `none` is not there."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        """Path, authorization and body of each request."""
        self.stops_after = 1 << 30
        """From then on requests wait, for ever."""
        self.num_busy = 0
        """Requests that are refused first."""
        self.may_go = threading.Event()
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: EmbeddingEndpoint

    def do_POST(self) -> None:
        if int(self.headers["content-length"]) > MAX_BYTES:
            self._answer(413, {"error": {"message": "the body is too large"}})
            return  # the connection is closed, and nothing of the body was read
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.asked.append((self.path, self.headers.get("authorization", ""), body))
            waits = len(self.server.asked) > self.server.stops_after
            is_busy, self.server.num_busy = self.server.num_busy > 0, self.server.num_busy - 1
        if waits:
            self.server.may_go.wait(60)
        elif is_busy:
            self._answer(429, {"error": {"message": "later"}})
        elif body.get("model") == "none":
            self._answer(404, {"error": {"message": "there is no such model"}})
        else:
            vectors = [(len(text), text.encode()[-1]) for text in body["input"]]
            is_text = body["encoding_format"] == "base64"
            rows = [
                {"index": i, "embedding": _base64(vector) if is_text else vector}
                for i, vector in enumerate(vectors)
            ]
            usage = {"prompt_tokens": len(rows)}
            self._answer(200, {"data": rows, "usage": usage, "system_fingerprint": "fp_1"})

    def _answer(self, status: int, told: object) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def _base64(vector: tuple[int, int]) -> str:
    return base64.b64encode(struct.pack("<2f", *vector)).decode()


@contextmanager
def running_endpoint() -> Iterator[EmbeddingEndpoint]:
    """One that serves until the end of the block."""
    with EmbeddingEndpoint() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.may_go.set()
        server.shutdown()
        thread.join()
