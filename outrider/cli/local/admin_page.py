"""Pages of a process's admin port."""

from __future__ import annotations

import http.client
from typing import Final

from outrider.errors import UnavailableError
from outrider.telemetry import names

_TIMEOUT_S: Final = 5.0
_BACKENDS: Final = names.TOKENIZATION_BACKEND
_BACKEND_KEYS: Final = ("model", "backend", "reason", "processes")


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


def tokenizer_backends(host: str, admin_port: int) -> list[dict[str, str]]:
    """`model`, `backend`, `reason` and `processes` of each model whose texts a process tokenizes,
    sorted; none where it does not answer."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        page = read_page(host, admin_port)
    except UnavailableError:
        return []
    lines = [line for line in page.splitlines() if line.startswith(f"{_BACKENDS}{{")]
    samples = (
        sample
        for family in text_string_to_metric_families("".join(f"{line}\n" for line in lines))
        for sample in family.samples
    )
    # Processes of one service differ in the label `worker` alone.
    found = {tuple(sample.labels[key] for key in _BACKEND_KEYS) for sample in samples}
    return [dict(zip(_BACKEND_KEYS, row, strict=True)) for row in sorted(found)]
