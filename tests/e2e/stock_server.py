"""A server that speaks vLLM's API as far as the engine openai-server uses it, and writes what a
test says."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from outrider.models.vocabulary import Vocabulary

METRICS: Final = b"""
vllm:num_requests_running{model_name="m"} 0.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="400"} 1.0
"""
_POLL_S: Final = 0.02


@dataclass
class StockServer:
    """What it writes, and what it was asked."""

    vocabulary: Vocabulary
    write: Callable[[dict[str, Any]], str]
    """The text of a reply, by the request."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The requests for replies."""
    num_left: int = 0
    """Replies whose connection the engine closed."""
    more: threading.Event = field(default_factory=threading.Event)
    """Set while replies may go on behind their first token."""
    url: str = ""

    def ids_of(self, body: dict[str, Any]) -> tuple[Sequence[int], str]:
        """A reply's ids, and why it ends: as vLLM, which keeps the id that ended it."""
        ids = [*self.vocabulary.encode(self.write(body)), min(self.vocabulary.stop_ids)]
        ends = set(body["stop_token_ids"])
        last = next((at for at, it in enumerate(ids) if it in ends), len(ids))
        ids = ids[: last + 1][: body["max_tokens"]]
        return ids, "stop" if ids and ids[-1] in ends else "length"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stock: StockServer

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        documents = {
            "/health": b"",
            "/v1/models": b'{"data": [{"id": "m", "max_model_len": 2048}]}',
            "/metrics": METRICS,
            "/version": b'{"version": "0.32.0"}',
        }
        self._answer(200 if self.path in documents else 404, documents.get(self.path, b""))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/detokenize":
            said = {"prompt": self.stock.vocabulary.decode(body["tokens"])}
            self._answer(200, json.dumps(said).encode())
        elif self.path == "/v1/completions":
            self._complete(body)
        else:
            self._answer(404, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _complete(self, body: dict[str, Any]) -> None:
        self.stock.asked.append(body)
        ids, reason = self.stock.ids_of(body)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for at, token in enumerate(ids):
                if at:
                    self._wait()
                finish = reason if at == len(ids) - 1 else None
                choice: dict[str, Any] = {"token_ids": [token], "finish_reason": finish}
                if (num := body.get("logprobs")) is not None:
                    choice["logprobs"] = _logprobs(token, num)
                self._event({"choices": [choice]})
            self._event({"choices": [], "usage": {"prompt_tokens": len(body["prompt"])}})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except OSError:
            self.stock.num_left += 1
            self.close_connection = True

    def _wait(self) -> None:
        """Until the reply may go on. Raises ConnectionError if the engine closes the connection."""
        while not self.stock.more.wait(_POLL_S):
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionError("the engine wants no more")

    def _event(self, said: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(said).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def _logprobs(token: int, num_top: int) -> dict[str, Any]:
    """The token's own is the likeliest of the ids that follow it."""
    top = {f"token_id:{token + at}": -0.5 - at for at in range(num_top)}
    return {"token_logprobs": [-0.5], "top_logprobs": [top]}


@contextmanager
def stock_server(
    vocabulary: Vocabulary, write: Callable[[dict[str, Any]], str]
) -> Iterator[StockServer]:
    """One that serves in threads of its own."""
    stock = StockServer(vocabulary, write)
    stock.more.set()
    handler = type("Handler", (_Handler,), {"stock": stock})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        stock.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield stock
        finally:
            stock.more.set()
            server.shutdown()
            thread.join()
