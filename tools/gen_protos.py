"""Generate `outrider/v1/` from `protos/`; with `--check`, fail if the committed code differs."""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
PROTOS = ROOT / "protos"
PACKAGE = Path("outrider") / "v1"


def generate(out: Path) -> None:
    """Write the generated modules under `out`; raises SystemExit with protoc's status."""
    files = sorted(PROTOS.rglob("*.proto"))
    with_service = [f for f in files if "\nservice " in f.read_text(encoding="utf-8")]
    include = f"-I{PROTOS}"
    _protoc([include, f"--python_out={out}", f"--mypy_out=quiet:{out}", *map(str, files)])
    _protoc(
        [
            include,
            f"--grpc_python_out={out}",
            f"--mypy_grpc_out=quiet:{out}",
            *map(str, with_service),
        ]
    )


def _protoc(args: list[str]) -> None:
    status = protoc.main(["protoc", *args])
    if status:
        raise SystemExit(status)


def _differences(fresh: Path, committed: Path) -> list[str]:
    generated = {p.name for p in fresh.iterdir()}
    kept = {p.name for p in committed.iterdir() if "_pb2" in p.name}
    _, mismatch, errors = filecmp.cmpfiles(fresh, committed, generated & kept, shallow=False)
    return sorted([*mismatch, *errors, *(generated ^ kept)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on drift")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as tmp:
        generate(Path(tmp))
        drift = _differences(Path(tmp) / PACKAGE, ROOT / PACKAGE)
    for name in drift:
        print(f"outdated: {PACKAGE / name}; run `make protos`", file=sys.stderr)
    return 1 if drift else 0


if __name__ == "__main__":
    raise SystemExit(main())
