"""Draws the charts of the pages, SVG files in `docs/charts/`, from the records alone.

`python -m bench.harness.charts` draws all of them, and so does `python -m bench` at its end. It
needs matplotlib (`pip install 'outrider[bench]'`). A chart has no date and no random ids: the same
record gives the same file. Each file names what it was drawn from, so that
`python -m bench.harness.readme --check` can tell a chart of an older record.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness.provenance import ROOT
from bench.harness.record import RESULTS, load
from bench.harness.statistics import median

FOLDER: Final = ROOT / "docs" / "charts"
INSTALL: Final = "charts need matplotlib: pip install 'outrider[bench]'"

COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#000000")
"""Okabe and Ito's palette, distinguishable with any kind of colour vision. A chart has at most as
many lines."""
_MARKERS: Final = "osD^vP"
"""One for each colour, for print in grey."""
_PIPELINE: Final = "OpenVINO pipeline"
_COMPARED: Final = (
    "outrider, drafts on",
    "outrider, drafts off",
    "llama.cpp Q4_0, its fastest",
    "llama.cpp Q4_1, the same file",
    "OpenVINO pipeline, prompt lookup",
)
"""Systems whose throughput is drawn: one colour each. The tables have all."""
_CURVES: Final = tuple(
    f"{pair}, RTT {rtt_ms} ms"
    for pair in ("one core", "rows nearly free")
    for rtt_ms in (0, 50, 150)
)
"""Of `bench.capacity`: pairs of models and distances that are drawn. The tables have all."""
_SIZE_INCHES: Final = (6.4, 4.2)
_MAX_NARROW_CHARS: Final = 40
"""Longest name of a line with which two names fit side by side."""
_LINES_APART: Final = 0.02
"""Distance between the points of two lines, as a share of the axis, so that their intervals stand
side by side."""
_SOURCE: Final = re.compile(r"drawn from (\w+), digest (\w+)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: points, and around each the ends of its interval."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """A quantity against another, one line for each system."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    powers_of_two: bool = False
    """Whether the x axis is logarithmic to base 2, with a tick at every point."""
    level: float | None = None
    """Height of a thin horizontal line to compare with; None: no such line."""


@dataclass(frozen=True, slots=True)
class RatioLines(Lines):
    """Ratios of both more and less than one: the y axis, too, is logarithmic to base 2."""


@dataclass(frozen=True, slots=True)
class Strips:
    """Single measurements side by side, one strip for each case, with a bar at their median."""

    title: str
    y_label: str
    strips: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: its file, the record it is drawn from, and the part of the record that it
    shows."""

    name: str
    """`docs/charts/NAME.svg`."""
    record: str
    read: Callable[[Mapping[str, Any]], Lines | Strips]
    """Raises ValueError for a record that has nothing to show."""


def first_word(record: Mapping[str, Any]) -> Lines:
    """Outrider's times over plain streaming's by RTT, ratios of means with their 95 % intervals."""
    rows = record["figures"]["over_plain, greedy"]
    lines = []
    for name, key in (
        ("first lasting word", "staying"),
        ("whole reply", "whole"),
        ("whole reply without an edge: the region drafts alone", "region_whole"),
    ):
        estimates = [(float(rtt_ms), row[key]) for rtt_ms, row in rows.items() if row[key]]
        if estimates:
            rtts_ms, values = zip(*sorted(estimates), strict=True)
            middle, low, high = (tuple(part) for part in zip(*map(_closed, values), strict=True))
            lines.append(Line(name, rtts_ms, middle, low, high))
    return Lines(
        "Outrider's time over plain streaming's, for the same chats\n"
        "(greedy, one chat at a time; ratios of means, 95 % intervals)",
        "round trip to the region, ms",
        "ratio of times (lower is sooner)",
        tuple(lines),
        level=1.0,
    )


def throughput(record: Mapping[str, Any]) -> Lines:
    """Throughput of greedy chats over the pipeline's of the same round, by chats at once: medians,
    lowest to highest round."""
    found: dict[str, dict[int, list[float]]] = {}
    for name, sample in record["samples"].items():
        match = re.fullmatch(r"tokens/s, chat, greedy, (\d+) sessions, (.+)", name)
        if match and sample["n"]:
            found.setdefault(match[2], {})[int(match[1])] = sample["values"]
    base = found.get(_PIPELINE)
    if base is None:
        raise ValueError("no greedy chats of the pipeline in the record")
    lines = []
    for system in _COMPARED:
        ratios = {
            count: [mine / other for mine, other in zip(values, base[count], strict=True)]
            for count, values in sorted(found.get(system, {}).items())
            if count in base
        }
        if ratios:
            lines.append(
                Line(
                    system,
                    x=tuple(map(float, ratios)),
                    y=tuple(median(of_rounds) for of_rounds in ratios.values()),
                    low=tuple(min(of_rounds) for of_rounds in ratios.values()),
                    high=tuple(max(of_rounds) for of_rounds in ratios.values()),
                )
            )
    return Lines(
        "Tokens per second over OpenVINO's pipeline, same machine and model\n"
        "(greedy; medians of the rounds' ratios, lowest to highest round)",
        "chats at once",
        "ratio of throughputs (higher is faster)",
        tuple(lines),
        powers_of_two=True,
        level=1.0,
    )


def fault_pauses(record: Mapping[str, Any]) -> Strips:
    """Pauses of interrupted chats by fault, measured with the real engine if the record has
    that."""
    for engine in ("openvino", "fake"):
        prefix = f"pause, {engine}, "
        strips = {
            name.removeprefix(prefix): tuple(sample["values"])
            for name, sample in record["samples"].items()
            if name.startswith(prefix) and sample.get("values")
        }
        if strips:
            named = {f"{fault}\n(n = {len(times)})": times for fault, times in strips.items()}
            title = f"Pause of chats that a fault interrupted ({engine} engine)"
            return Strips(title, "ms from last commit before to first after", named)
    raise ValueError("no pauses in the record")


def capacity(record: Mapping[str, Any]) -> RatioLines:
    """Chats of one core with edges that draft, for each chat at the same pace without, by chats
    without: for two pairs of models."""
    curves = record["figures"]["curves"]
    lines = []
    for name in _CURVES:
        found = sorted((int(count), ratio) for count, ratio in curves[name].items() if ratio)
        x, y = tuple(float(it[0]) for it in found), tuple(it[1] for it in found)
        lines.append(Line(name, x, y, y, y))
    return RatioLines(
        "Chats of one region core with edges that draft, over those without\n"
        "(at the pace of plain decoding or region drafting, the better)",
        "chats at once without edges",
        "ratio of chats",
        tuple(lines),
        powers_of_two=True,
        level=1.0,
    )


CHARTS: Final = (
    Chart("first-word", "wan", first_word),
    Chart("throughput", "inference", throughput),
    Chart("fault-pauses", "faults", fault_pauses),
    Chart("capacity", "capacity", capacity),
)


def draw_all(results: Path = RESULTS, folder: Path = FOLDER) -> None:
    """Draw every chart whose record is there. Raises ModuleNotFoundError without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    for chart in CHARTS:
        record = load(chart.record, results)
        if record is not None:
            shown = chart.read(record)
            _draw(shown, folder / f"{chart.name}.svg", f"drawn from {_source(chart, shown)}")


def outdated(results: Path = RESULTS, folder: Path = FOLDER) -> list[str]:
    """Names of the charts that are missing, or drawn from other figures than those recorded."""
    names = []
    for chart in CHARTS:
        record = load(chart.record, results)
        if record is None:
            continue
        path = folder / f"{chart.name}.svg"
        found = _SOURCE.search(path.read_text(encoding="utf-8")) if path.exists() else None
        if found is None or found[0] != f"drawn from {_source(chart, chart.read(record))}":
            names.append(chart.name)
    return names


def is_installed() -> bool:
    """Whether charts can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def _closed(estimate: Sequence[float | None]) -> tuple[float, float, float]:
    """An estimate and the ends of its interval: itself where there were too few chats for one."""
    value, low, high = estimate
    assert value is not None
    return value, value if low is None else low, value if high is None else high


def _source(chart: Chart, shown: Lines | Strips) -> str:
    """Name of the record, and a digest of the part shown."""
    text = json.dumps(asdict(shown), sort_keys=True)
    return f"{chart.record}, digest {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _draw(shown: Lines | Strips, path: Path, source: str) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text stays text, and element ids come from a fixed salt instead of a random one.
    with mpl.rc_context({"svg.hashsalt": "outrider", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained", facecolor="white")
        axes = figure.subplots()
        axes.set_title(shown.title, fontsize=11)
        axes.set_ylabel(shown.y_label)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if isinstance(shown, Lines):
            _draw_lines(axes, shown)
        else:
            _draw_strips(axes, shown)
        metadata = {"Date": None, "Creator": None, "Description": source}
        figure.savefig(path, format="svg", metadata=metadata)


def _draw_lines(axes: Any, shown: Lines) -> None:
    ticks = sorted({x for line in shown.lines for x in line.x})
    axes.set_xlabel(shown.x_label)
    if shown.powers_of_two:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if isinstance(shown, RatioLines):
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    for number, line in enumerate(shown.lines):
        below = [y - low for y, low in zip(line.y, line.low, strict=True)]
        above = [high - y for y, high in zip(line.y, line.high, strict=True)]
        aside = _LINES_APART * (number - (len(shown.lines) - 1) / 2)
        axes.errorbar(
            [_moved(x, aside, ticks, by_ratio=shown.powers_of_two) for x in line.x],
            line.y, yerr=(below, above), label=line.name,
            color=COLOURS[number], marker=_MARKERS[number], markersize=5,
            linewidth=1.8, elinewidth=1.4, capsize=3,
        )  # fmt: skip
    if shown.level is None:
        axes.set_ylim(bottom=0)
    else:
        axes.axhline(shown.level, color="#555555", linewidth=1.2)
    columns = 1 if max(len(line.name) for line in shown.lines) > _MAX_NARROW_CHARS else 2
    axes.figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def _moved(x: float, share: float, ticks: Sequence[float], *, by_ratio: bool) -> float:
    """`x` moved by a share of the axis, of which `ticks` are the first and the last."""
    if by_ratio:
        return float(x * (ticks[-1] / ticks[0]) ** share)
    return float(x + (ticks[-1] - ticks[0]) * share)


def _draw_strips(axes: Any, shown: Strips) -> None:
    for at, times in enumerate(shown.strips.values()):
        # Side by side in their order, so that equal times do not hide one another.
        spread = [at + 0.36 * (index / max(1, len(times) - 1) - 0.5) for index in range(len(times))]
        axes.scatter(spread, times, s=14, color=COLOURS[0], alpha=0.6, linewidths=0)
        axes.hlines(median(times), at - 0.25, at + 0.25, color=COLOURS[3], linewidth=2.4)
    axes.set_xticks(range(len(shown.strips)), list(shown.strips))
    axes.plot([], [], color=COLOURS[3], linewidth=2.4, label="median")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.harness.charts", description=__doc__)
    parser.parse_args()
    if not is_installed():
        print(INSTALL, file=sys.stderr)
        return 1
    draw_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
