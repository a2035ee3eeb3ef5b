"""The page that says to people what an edge is: HTML without scripts (pure)."""

from __future__ import annotations

from html import escape
from typing import Final

from services.edge.http.routes import ALL_ROUTES

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Outrider</title>
<style>
body {{ font-family: sans-serif; line-height: 1.5; max-width: 60rem; margin: 2rem auto; \
padding: 0 1rem }}
td {{ padding: 0 1.5rem 0 0 }}
</style>
<h1>Outrider</h1>
<p>This is an edge of Outrider {version}. It serves large language models by the APIs of OpenAI and
Anthropic.</p>
<ul>
<li>Clients of the OpenAI API take this address with <code>/v1</code> behind it as base URL, those
of the Anthropic API this address as it is.</li>
<li>Requests have a key, <code>Authorization: Bearer KEY</code> or <code>x-api-key: KEY</code>,
unless the operator serves clients without one.</li>
<li><code>GET /v1/models</code> lists the models.</li>
<li><a href="openapi.json">openapi.json</a> describes all fields for programs.</li>
</ul>
<table>
{rows}
</table>
</html>
"""


def page(version: str) -> bytes:
    """HTML, for this version of Outrider."""
    rows = [
        f"<tr><td><code>{it.method} {escape(it.path.replace(':path', ''))}</code>"
        f"<td>{escape(it.summary)}</tr>"
        for it in ALL_ROUTES
        if it.response is not None
    ]
    return _PAGE.format(version=escape(version), rows="\n".join(rows)).encode()
