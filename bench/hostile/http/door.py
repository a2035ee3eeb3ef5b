"""`python -m bench.hostile --http`: ten thousand hostile requests at the HTTP door of one mesh."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from bench.harness import start
from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from bench.hostile.bystander import bystanding
from bench.hostile.catalog import HTTP_ATTACKS, Attack, attack_of
from bench.hostile.http.bystander import http_bystanding
from bench.hostile.http.measuring import DoorResult, measure
from bench.hostile.http.report import report
from bench.hostile.measuring import ratio_cell
from bench.hostile.target import Target, target_of
from bench.hostile.watch import read
from outrider.cli.local import development_key

HTTP_SETTINGS: Final = (
    "edge.http.idle_timeout_s=3",
    "edge.http.body_timeout_s=3",
    "edge.http.send_timeout_s=3",
    "edge.http3.header_timeout_s=3",
    "edge.http3.body_timeout_s=3",
    "edge.http3.write_timeout_s=3",
)
"""Slow requests are given up sooner than by default, so that a run sees their end."""
QUICK_SHARE: Final = 0.1
_CALM_S: Final = 3.0
_QUICK_CALM_S: Final = 1.0


def door_target(mesh: LocalMesh, share: float = 1.0) -> Target:
    """A mesh that serves HTTP, and a key of the attacker's own: as any tenant has one."""
    made = outrider("keys", "create", "attacker", "--json", "--state-dir", str(mesh.state_dir))
    file = mesh.state_dir / "attacker-key"
    file.touch(mode=0o600)
    file.write_text(json.loads(made.stdout)["key"], encoding="utf-8")
    return replace(target_of(mesh), key_file=str(file), requests_share=share)


async def attacked(
    mesh: LocalMesh,
    attacks: Sequence[Attack],
    share: float,
    warm_up: tuple[float, int],
    seconds: float,
) -> tuple[list[DoorResult], dict[str, list[float]]]:
    """Make all attacks, one after the other, after `warm_up`: seconds, and tokens of prompts. Also
    memory by process, before the first and after the last."""
    target, results = door_target(mesh, share), list[DoorResult]()
    async with AsyncExitStack() as stack:
        native = await stack.enter_async_context(bystanding(target))
        key = development_key.read(mesh.state_dir)
        http = await stack.enter_async_context(http_bystanding(target, key))
        bystanders = {"native": native, "HTTP": http}
        await native.warm_up(*warm_up)
        before = await read(mesh)
        for attack in attacks:
            result = await measure(mesh, target, attack, bystanders, seconds)
            results.append(result)
            print(_line(result), flush=True)
        after = await read(mesh)
        if native.text != http.text:
            results[-1].findings.broken.append("the bystanders were told different texts")
    return results, {
        name: [before[name].rss_mb, after[name].rss_mb] for name in before.keys() & after.keys()
    }


def main(arguments: argparse.Namespace, settings: Sequence[str], warm_up: tuple[float, int]) -> int:
    """The whole run; 1 if an aim was missed."""
    run = start("hostile_http", arguments)
    engine = arguments.engine or ("fake" if run.quick else "openvino")
    share = QUICK_SHARE if run.quick else 1.0
    seconds = arguments.seconds or (_QUICK_CALM_S if run.quick else _CALM_S)
    attacks = [attack_of(name) for name in arguments.only] if arguments.only else HTTP_ATTACKS
    settings = (*settings, *HTTP_SETTINGS)
    run.setting("mesh", engine=engine, seconds=seconds, settings=settings, share=share)
    with local_mesh(engine=engine, regions="us-east", settings=settings, http=True) as mesh:
        results, rss_mb = asyncio.run(attacked(mesh, attacks, share, warm_up, seconds))
    report(run, results, rss_mb)
    run.finish()
    return int(bool(run.figures["broken"]))


def _line(result: DoorResult) -> str:
    """One attack's result in a line, printed while the run goes on."""
    said = "; ".join(result.misses) or "no aim missed"
    ratios = ", ".join(f"{name} x {ratio_cell(result.tail_ratio(name))}" for name in result.calm)
    return (
        f"{result.attack.name}: {result.num_requests} requests, grew "
        f"{max(result.growth_mb.values()):.0f} MB, loop blocked "
        f"{max(result.blocked_ms_max.values()):.0f} ms, late {max(result.lag_ms_max.values()):.0f} "
        f"(calm {result.calm_lag_ms_max:.0f}), p95 {ratios}; {said}; {json.dumps(result.answers)}"
    )
