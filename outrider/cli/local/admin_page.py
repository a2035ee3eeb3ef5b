"""Pages of a process's admin port."""

from __future__ import annotations

import http.client
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from outrider.errors import UnavailableError
from outrider.telemetry import names

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

_TIMEOUT_S: Final = 5.0
_BACKENDS: Final = names.TOKENIZATION_BACKEND
_BACKEND_KEYS: Final = ("model", "backend", "reason", "processes")
_CHATS: Final = ("outrider_edge_display_chats_total", "drafting")
"""Name and label."""
_REPLICAS: Final = "outrider_router_replicas"
_SUMS: Final = {
    "outrider_edge_tokens_total": "tokens",
    "outrider_edge_shown_tokens_total": "stayed_tokens",
    "outrider_edge_erased_tokens_total": "erased_tokens",
    "outrider_edge_sooner_seconds_total": "sooner_s",
}


def read_page(host: str, admin_port: int, path: str = "/metrics") -> str:
    """A page of a process's admin port. Raises UnavailableError."""
    connection = http.client.HTTPConnection(host, admin_port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode("utf-8")
    except (OSError, http.client.HTTPException) as error:
        why = f"{host}:{admin_port} does not answer {path}: {error}"
        raise UnavailableError(why) from error
    finally:
        connection.close()


def _samples(host: str, admin_port: int, names: Iterable[str]) -> list[Sample]:
    """Samples of these names, which have labels; none where the process does not answer."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        page = read_page(host, admin_port)
    except UnavailableError:
        return []
    begin = tuple(f"{name}{{" for name in names)
    lines = [f"{line}\n" for line in page.splitlines() if line.startswith(begin)]
    families = text_string_to_metric_families("".join(lines))
    return [sample for family in families for sample in family.samples]


def provisional_text(host: str, admin_port: int) -> list[dict[str, Any]]:
    """What provisional text brought the chats of each model at an edge since it started: chats by
    `on`, `off` and `trial` (whether drafts were made for display alone), and sums over all; none
    where it does not answer or no chat had such text."""
    found: dict[str, dict[str, Any]] = {}
    for sample in _samples(host, admin_port, (_CHATS[0], *_SUMS)):
        model = sample.labels["model"]
        row = found.setdefault(
            model, {"model": model} | dict.fromkeys(("on", "off", "trial", *_SUMS.values()), 0)
        )
        # Processes of one service differ in the label `worker` alone.
        key = sample.labels[_CHATS[1]] if sample.name == _CHATS[0] else _SUMS[sample.name]
        row[key] += sample.value
    rows = (found[model] for model in sorted(found))
    return [row for row in rows if row["on"] + row["off"] + row["trial"]]


def tokenizer_backends(host: str, admin_port: int) -> list[dict[str, str]]:
    """`model`, `backend`, `reason` and `processes` of each model whose texts a process tokenizes,
    sorted; none where it does not answer."""
    samples = _samples(host, admin_port, (_BACKENDS,))
    # Processes of one service differ in the label `worker` alone.
    found = {tuple(sample.labels[key] for key in _BACKEND_KEYS) for sample in samples}
    return [dict(zip(_BACKEND_KEYS, row, strict=True)) for row in sorted(found)]


def reaches_all_replicas(host: str, admin_port: int) -> bool:
    """Whether a router answers, and every replica that it is configured with takes sessions."""
    replicas = _samples(host, admin_port, (_REPLICAS,))
    return bool(replicas) and all(
        sample.labels["state"] == "ready" for sample in replicas if sample.value
    )
