"""`outrider prefixes`: what replicas have pinned for the beginnings of prompts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from outrider.cli import operator, router_choice
from outrider.cli.columns import columns
from outrider.cli.local.state import StateDir
from outrider.cli.router_state import ask

_Json = Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")]


def prefixes(
    as_json: _Json = False,
    router: router_choice.Router = "",
    state_dir: StateDir = None,
    certificate: operator.Certificate = None,
    private_key: operator.PrivateKey = None,
    ca: operator.Ca = None,
    trust_domain: operator.TrustDomain = operator.TRUST_DOMAIN,
    plaintext: operator.Plaintext = False,
) -> None:
    """List the registered prompt prefixes that replicas keep in memory, by model, and the tenants
    that may use them. Register prefixes as [[inference.prefixes]] in the configuration file."""
    flags = (certificate, private_key, ca, trust_domain, plaintext)
    asked = router_choice.choose(state_dir, router, flags)
    found = listed(asyncio.run(ask(asked.address, asked.tls))["replicas"])
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        for line in lines(found):
            print(line)


def listed(replicas: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each prefix with the replicas that have it, in the shape that `--json` prints."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for replica in replicas:
        for it in replica["static_prefixes"]:
            key = (replica["model"], it["name"], it["tokens"], *it["tenants"])
            row = found.setdefault(key, {"model": replica["model"], **it, "replicas": []})
            row["replicas"].append(replica["name"])
    return [found[key] for key in sorted(found)]


def lines(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The same as a table."""
    if not found:
        yield "no replica has static prefixes: register them as [[inference.prefixes]]"
        return
    rows = [("NAME", "MODEL", "TOKENS", "TENANTS", "REPLICAS")]
    for it in found:
        tenants = ", ".join(it["tenants"])
        rows.append(
            (it["name"], it["model"], str(it["tokens"]), tenants, ", ".join(it["replicas"]))
        )
    yield from columns(rows, num_names=2)
