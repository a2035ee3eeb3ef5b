"""The measurements of one draft, as JSON and as the model card's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tools.train_draft.artifact.calibration import calibrated, calibration_error, reliability
from tools.train_draft.artifact.file import Draft
from tools.train_draft.evaluation.agreement import Trace, figures

MODES = {"greedy": 0.0, "sampled": 0.8}


def report(draft: Draft, seen: Mapping[str, Sequence[Trace]]) -> dict[str, Any]:
    """By split and mode, with each kind's agreement and the calibration's reliability."""
    curves = {"greedy": draft.calibration_greedy, "sampled": draft.calibration_sampled}
    splits: dict[str, Any] = {}
    for split, traces in seen.items():
        for mode, temperature in MODES.items():
            found = [trace for trace in traces if trace.temperature == temperature]
            if found:
                entry = figures(found) | {"by_kind": _by_kind(found)}
                entry |= _calibration(found, curves[mode].astype(np.float64))
                splits.setdefault(split, {})[mode] = entry
    return {
        "target": draft.target,
        "layers": draft.geometry.block_count,
        "head_rows": len(draft.head_ids),
        "splits": splits,
    }


def _by_kind(traces: Sequence[Trace]) -> dict[str, float]:
    kinds = sorted({trace.kind for trace in traces})
    return {
        kind: round(float(np.concatenate([t.agreed for t in traces if t.kind == kind]).mean()), 3)
        for kind in kinds
    }


def _calibration(traces: Sequence[Trace], curve: Any) -> dict[str, Any]:
    chances = calibrated(curve, np.concatenate([trace.confidence for trace in traces]))
    agreed = np.concatenate([trace.agreed for trace in traces])
    return {
        "calibration_error": round(calibration_error(chances, agreed), 4),
        "reliability": reliability(chances, agreed),
    }


def tables(measured: Mapping[str, Any]) -> str:
    """The measurements as Markdown tables."""
    lines = [
        "| prompts | mode | replies | agreement | at reply tokens 1..5 "
        "| tokens per step, k = 2, 4, 8 | calibration error |",
        "| --- | --- | ---: | ---: | --- | --- | ---: |",
    ]
    positions = [
        "| prompts | mode | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |",
        "| --- | --- " + "| ---: " * 8 + "|",
    ]
    for split, modes in measured["splits"].items():
        for mode, entry in modes.items():
            name = f"{split.replace('_', ' ')} | {mode}"
            steps = ", ".join(f"{x:.2f}" for x in entry["tokens_per_step"].values())
            lines.append(
                f"| {name} | {entry['replies']} | {entry['agreement']:.3f} | "
                f"{_row(entry['by_reply_position'], ' ')} | {steps} | "
                f"{entry['calibration_error']:.3f} |"
            )
            positions.append(f"| {name} | {_row(entry['by_draft_position'], ' | ')} |")
    heading = "**Acceptance by position in the draft, all before it accepted**"
    return "\n".join(["**Agreement with the target**", "", *lines, "", heading, "", *positions])


def _row(values: Sequence[float], between: str) -> str:
    return between.join(f"{value:.2f}" for value in values)
