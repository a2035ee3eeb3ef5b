"""Pages of a process's admin port."""

from __future__ import annotations

import http.client
from typing import Final

from outrider.errors import UnavailableError

_TIMEOUT_S: Final = 5.0


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
