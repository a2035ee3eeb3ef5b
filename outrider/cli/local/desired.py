"""How many replicas a router says that there should be, read from its metrics."""

from __future__ import annotations

import http.client
import re
from typing import Any, Final

from outrider.errors import UnavailableError

_TIMEOUT_S: Final = 5.0
_LINE: Final = re.compile(r"^outrider_router_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_FIGURES: Final = ("desired_replicas", "serving_replicas", "late_share", "utilization")


def desired_replicas(host: str, admin_port: int) -> list[dict[str, Any]]:
    """The autoscale advice by region and model. Raises UnavailableError."""
    connection = http.client.HTTPConnection(host, admin_port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode("utf-8")
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{host}:{admin_port} gives no metrics: {error}") from error
    finally:
        connection.close()
    return figures(text)


def figures(text: str) -> list[dict[str, Any]]:
    """The figures in what a router's /metrics says."""
    posts: dict[tuple[str, str], dict[str, Any]] = {}
    for name, labels, value in _LINE.findall(text):
        known = dict(_LABEL.findall(labels))
        if name in _FIGURES and "region" in known and "model" in known:
            post = {"region": known["region"], "model": known["model"]}
            posts.setdefault((post["region"], post["model"]), post)[name] = float(value)
    return [posts[key] for key in sorted(posts)]


def desired_line(post: dict[str, Any]) -> str:
    """One region and model in words."""
    return (
        f"{post['region']:<14} {post['model']:<28} replicas: "
        f"{post['desired_replicas']:.0f} wanted, {post['serving_replicas']:.0f} serve  "
        f"late {post['late_share']:.1%}  utilization {post['utilization']:.0%}"
    )
