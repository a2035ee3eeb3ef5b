"""One run of a bench, and the record it leaves.

A bench prints its tables and, last, one line of JSON. A full run, and a core one, also write
`bench/results/NAME.json`: tables and figures, the samples behind them, the settings of everybody
measured, the commit, a digest of each file that is measured, the machine, date and duration. A
`--quick` run writes nothing.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from bench.harness.benches import bench_of
from bench.harness.provenance import ROOT, Commit, Facts, changed_paths, commit, machine_facts
from bench.harness.samples import packed
from bench.harness.sources import digests
from bench.harness.tables import Table

RESULTS = ROOT / "bench" / "results"

Figure: TypeAlias = str | int | float | bool | Sequence["Figure"] | Mapping[str, "Figure"] | None


@dataclass(frozen=True, slots=True)
class Origin:
    """State of the sources when a run began."""

    began_at: float
    """time.monotonic()."""
    commit: Commit
    sources: dict[str, str]
    """A digest of each file that is measured, by its path."""


def origin(name: str) -> Origin:
    """Origin of a run of this bench that begins now."""
    return Origin(time.monotonic(), commit(), digests(bench_of(name).sources(), ROOT))


@dataclass(slots=True)
class Run:
    """One run of a bench."""

    name: str
    quick: bool
    command: str
    plan: str = "full"
    """`full`, or `core`: the smaller size that `make bench-core` runs."""
    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    origin: Origin | None = None
    """None: the state when the run finishes."""
    _samples: dict[str, dict[str, Any]] = field(default_factory=dict)
    _settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def core(self) -> bool:
        return self.plan == "core"

    def table(self, title: str, *columns: str) -> Table:
        table = Table(title, columns)
        self.tables.append(table)
        return table

    def samples(self, name: str, values: Sequence[float], *, unit: str) -> None:
        """Keep the samples behind a figure: one by one up to 2,000 values, else a histogram. Raises
        ValueError if the name is taken."""
        if name in self._samples:
            raise ValueError(f"samples {name!r} are recorded already")
        self._samples[name] = packed(values, unit)

    def setting(self, system: str, **values: object) -> None:
        """Keep how somebody measured was set up: versions, threads, chunk sizes, flags."""
        self._settings.setdefault(system, {}).update(values)

    def finish(self, results: Path = RESULTS) -> None:
        """Print everything, and record a run that is not quick."""
        for table in self.tables:
            print(table.plain(), end="\n\n")
        if not self.quick:
            results.mkdir(parents=True, exist_ok=True)
            part = results / f"{self.name}.json.part"
            part.write_text(_as_json(self._record(machine_facts())), encoding="utf-8")
            part.replace(results / f"{self.name}.json")  # never half a record
        print(json.dumps({"bench": self.name, "quick": self.quick, **self.figures}), flush=True)

    def _record(self, facts: Facts) -> dict[str, object]:
        begun = self.origin or origin(self.name)
        return {
            "name": self.name,
            "command": self.command,
            "plan": self.plan,
            "commit": asdict(begun.commit),
            "sources": begun.sources,
            "duration_s": round(time.monotonic() - begun.began_at, 1),
            "machine": asdict(facts),
            "settings": self._settings,
            "samples": self._samples,
            "tables": [asdict(table) for table in self.tables],
            "figures": self.figures,
        }


def load(name: str, results: Path = RESULTS) -> dict[str, Any] | None:
    """The record of this name; None if it does not exist."""
    path = results / f"{name}.json"
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


@dataclass(frozen=True, slots=True)
class Changes:
    """How many of a record's measured files have changed."""

    num_changed: int
    num_files: int


def changes(record: Mapping[str, Any], root: Path = ROOT) -> Changes | None:
    """Changes since the record was made, by its digests, or, if it has none of single files, by git
    and its commit. None if neither tells."""
    sources = record.get("sources", {})
    if sources and "digest" not in sources:
        now = digests(sources, root)
        return Changes(sum(now[file] != sources[file] for file in sources), len(sources))
    commit_id = record.get("commit", {}).get("id")
    changed = changed_paths(commit_id, root) if commit_id else None
    if changed is None:
        return None
    files = bench_of(record["name"]).sources(root)
    return Changes(len(changed.intersection(files)), len(files))


def _as_json(record: dict[str, Any]) -> str:
    """Indented, but for samples: one name a line."""
    samples: dict[str, Any] = record["samples"]
    kept = {name: f"@samples {number}@" for number, name in enumerate(samples)}
    text = json.dumps({**record, "samples": kept}, ensure_ascii=False, indent=1, default=str)
    for name, place in kept.items():
        compact = json.dumps(samples[name], ensure_ascii=False, separators=(",", ":"))
        text = text.replace(f'"{place}"', compact, 1)
    return text + "\n"


def parser(name: str, description: str, *, core: str = "") -> argparse.ArgumentParser:
    """An argument parser with the flags that every bench has; with a sentence on its size as a
    part of `make bench-core`, if it is one."""
    made = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    made.add_argument("--quick", action="store_true", help="fewer rounds; nothing is recorded")
    if core:
        made.add_argument("--core", action="store_true", help=core)
    return made


def start(name: str, arguments: argparse.Namespace) -> Run:
    """The run that these parsed arguments ask for. From now on SIGTERM ends this process as an
    exception does, so that what it started is stopped too."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    spec = sys.modules["__main__"].__spec__
    module = spec.name.removesuffix(".__main__") if spec else f"bench.{name}"
    command = " ".join(["python -m", module, *sys.argv[1:]])
    plan = "core" if getattr(arguments, "core", False) else "full"
    return Run(name, bool(arguments.quick), command, plan, origin=origin(name))
