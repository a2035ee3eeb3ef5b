"""A load test as a picture: how many requests had which times."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from outrider.cli.bench.report import Measured
from outrider.errors import InvalidRequestError
from outrider.extras import advice_for

_TITLES: Final = {"ttft": "TTFT", "first shown": "first shown", "itl": "ITL", "e2e": "end to end"}


def check(file: Path) -> None:
    """Before anything is sent. Raises InvalidRequestError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidRequestError(f"--plot: {advice_for('matplotlib')}")
    if file.suffix != ".png" or not file.parent.is_dir():
        raise InvalidRequestError(f"--plot takes a .png in a folder that is there, not {file}")


def draw(measured: Measured, title: str, file: Path) -> None:
    """Cumulative shares over milliseconds, on a logarithmic axis, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, label in _TITLES.items():
        values = sorted(measured.by_name.get(name, ()))
        if values:
            shares = [(at + 1) / len(values) for at in range(len(values))]
            axes.step(values, shares, where="post", label=f"{label} (n = {len(values)})")
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("share of requests, or of tokens for ITL")
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    if axes.lines:
        axes.legend()
    figure.savefig(file, dpi=120)
