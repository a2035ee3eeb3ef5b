"""Which calls compute the same bits, remembered between the starts of a model.

Comparing calls (`consistency`) computes some nine hundred rows and is the most expensive part of a
start after compiling. What was found is kept in a file beside the converted model, one file for
each combination of everything it depends on:

- the model: the digests of the converted files, and the fingerprint of the call that the others
  are compared with, which is computed afresh at every start;
- the CPU: every field of /proc/cpuinfo that does not change while the machine runs (family, model,
  stepping, microcode, flags), its caches, and the number of CPUs this process may use;
- OpenVINO: its version with the commit, all properties of the compiled model (precision, threads,
  quantization group, the instruction set that it chose), and the environment variables that
  can make it or its libraries choose other kernels;
- this package's source, so any change of what is compiled or compared is a new combination;
- the numbers of rows that calls are rounded up to.

This is safe: if a fact cannot be found out, nothing is remembered, and a fact that differs in any
way names another file. A damaged or unexpected file is ignored and written anew; a directory that
cannot be written costs only the time. A model keeps the newest MAX_FILES answers: each upgrade or
other setting adds one, and none of the earlier ones may ever be asked for again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import openvino as ov
import structlog

from outrider.durable_files import write_atomic
from outrider.engines import base
from outrider.engines.cpu_features import cpu_identity
from outrider.engines.openvino.consistency import Agreement
from outrider.models.disk.derived import MANIFEST

Facts: TypeAlias = Mapping[str, Any]
"""All that an answer depends on, as JSON values."""

MAX_FILES: Final = 16
"""Answers kept of one model."""
_LIBRARY_PREFIXES: Final = (
    "OV_",
    "OPENVINO_",
    "ONEDNN_",
    "DNNL_",
    "TBB_",
    "OMP_",
    "KMP_",
    "MKL_",
)
"""Prefixes of environment variables that OpenVINO and its libraries read."""
_NAME_ONLY: Final = ("NETWORK_NAME", "SUPPORTED_PROPERTIES")
"""Properties of a compiled model that do not affect how it computes."""

log = structlog.get_logger()


def known_facts(directory: Path, compiled: Any, layout: Facts) -> Facts | None:
    """Everything that the answer for the converted model in `directory`, compiled as `compiled`,
    depends on, with the caller's `layout`. None if a fact is missing: on a system that does not
    report its CPU, or for a model without a manifest of its files."""
    try:
        cpu = cpu_identity()
        manifest = (directory / MANIFEST).read_bytes()
        source = _source_digest()
        properties = _properties(compiled)
    except (OSError, RuntimeError):
        return None
    if not cpu:
        return None
    return {
        "model": hashlib.sha256(manifest).hexdigest(),
        "cpu": cpu,
        "openvino": ov.get_version(),
        "properties": properties,
        "environment": _environment(os.environ),
        "source": source,
        **layout,
    }


def recall(directory: Path, facts: Facts) -> Agreement | None:
    """What was found with these facts; None if it is not known."""
    try:
        written = json.loads(_file(directory, facts).read_bytes())
        found = Agreement(**written["agreement"])
        if written != _record(facts, found) or any(type(n) is not int or n < 0 for n in found):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def remember(directory: Path, facts: Facts, found: Agreement) -> None:
    """Keep what was found; a store that cannot be written is logged."""
    path = _file(directory, facts)
    try:
        write_atomic(path, json.dumps(_record(facts, found), indent=1).encode(), mode=0o644)
        _forget_oldest(path)
    except OSError as error:
        log.info("agreed_calls_not_kept", path=str(path), error=str(error))


def _forget_oldest(newest: Path) -> None:
    """Remove answers beyond MAX_FILES, those written first, but not the `newest`."""
    others = set(newest.parent.glob(_name("*"))) - {newest}
    by_age = sorted(others, key=lambda file: file.stat().st_mtime_ns)
    for file in by_age[: max(0, len(by_age) - MAX_FILES + 1)]:
        file.unlink(missing_ok=True)


def _record(facts: Facts, found: Agreement) -> dict[str, Any]:
    """Contents of a file; the digest covers the answer too, so a damaged number is noticed."""
    body = {"facts": facts, "agreement": found._asdict()}
    return {**body, "sha256": _digest(body)}


def _file(directory: Path, facts: Facts) -> Path:
    """Beside the directory: one inside would differ from the directory's manifest."""
    return directory.parent / _name(_digest(facts)[:32])


def _name(key: str) -> str:
    return f"agreed-calls-{key}.json"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _properties(compiled: Any) -> dict[str, str]:
    names = set(compiled.get_property("SUPPORTED_PROPERTIES")).difference(_NAME_ONLY)
    return {name: str(compiled.get_property(name)) for name in sorted(names)}


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environ.items() if name.startswith(_LIBRARY_PREFIXES)}


def _source_digest() -> str:
    """SHA-256 of this package's source and of the rule by which calls are rounded."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(base.__file__)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
