"""The admin port of all processes of a service together."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from outrider.telemetry.admin import AdminServer, Answer, json_answer
from outrider.telemetry.config import AdminConfig
from outrider.workers.gathering import gathered

PARENT = "parent"
"""The value of the label `worker` for the parent's own samples."""
_TIMEOUT_S = 2.0
"""A process that does not answer for so long is left out, and not ready."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""No proxy that the environment names is asked."""


class GroupAdmin(AdminServer):
    """Answers for the whole group by asking the processes, each of which has an admin port of its
    own on the loopback."""

    def __init__(
        self,
        config: AdminConfig,
        *,
        ports: Callable[[], Mapping[int, int | None]],
        state: Callable[[], tuple[bool, str]],
        registry: CollectorRegistry,
    ) -> None:
        """`ports`: the admin port of each process; None: it does not run. `state`: whether the
        service takes requests at all, and why not. `registry`: the parent's own metrics."""
        super().__init__(config, ready=state, registry=registry)
        self._ports = ports
        self._state = state
        self._own = registry

    async def answer(self, method: str, path: str, accept: str = "") -> Answer:
        """Answer a request; see AdminServer. What several processes counted is gathered in
        Prometheus' own format, which has no exemplars."""
        if method in ("GET", "HEAD"):
            if path == "/metrics":
                return await self._metrics()
            if path == "/ready":
                return await self._readiness()
            if path == "/config":
                return await self._config_file()
        return await super().answer(method, path, accept)

    async def _metrics(self) -> Answer:
        answers = await self._ask_all("/metrics")
        texts = {str(index): body.decode() for index, (status, body) in answers.items() if status}
        own = await asyncio.to_thread(generate_latest, self._own)
        text = await asyncio.to_thread(gathered, {**texts, PARENT: own.decode()})
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, text

    async def _readiness(self) -> Answer:
        is_ready, why = self._state()
        if is_ready:
            answers = await self._ask_all("/ready")
            for index, (status, body) in sorted(answers.items()):
                if status != HTTPStatus.OK:
                    reason = json.loads(body)["reason"] if status else "it does not answer"
                    is_ready, why = False, f"worker {index}: {reason}"
                    break
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return json_answer(status, {"ready": is_ready, "reason": why})

    async def _config_file(self) -> Answer:
        """The verdict common to all processes; an empty one while they have not read the same
        file."""
        answers = list((await self._ask_all("/config")).values())
        verdicts = [json.loads(body) for status, body in answers if status == HTTPStatus.OK]
        if len(verdicts) < len(answers) or not verdicts:
            return json_answer(HTTPStatus.NOT_FOUND, {"reason": "not every worker has read a file"})
        refused = next((it for it in verdicts if it["refused"]), verdicts[0])
        is_same = all(it["sha256"] == refused["sha256"] for it in verdicts)
        found = refused if is_same else {"sha256": "", "refused": ""}
        return json_answer(HTTPStatus.OK, found)

    async def _ask_all(self, path: str) -> dict[int, tuple[int, bytes]]:
        """Status and body of each process's answer; status 0 without an answer."""
        ports = self._ports()
        answers = await asyncio.gather(
            *(asyncio.to_thread(_ask, port, path) for port in ports.values())
        )
        return dict(zip(ports, answers, strict=True))


def _ask(port: int | None, path: str) -> tuple[int, bytes]:
    if port is None:
        return 0, b""
    try:
        url = f"http://127.0.0.1:{port}{path}"
        with _DIRECT.open(url, timeout=_TIMEOUT_S) as reply:
            return int(reply.status), reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""
