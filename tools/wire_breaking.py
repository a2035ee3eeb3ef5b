"""Compare protos/ with the earlier version's: fails for a change after which the two versions
misread each other's messages. If the history is missing, it says that nothing was compared."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.earlier_version import ROOT, NoHistoryError, commit_of, earlier_commit, extract


def breaking_changes(commit: str, root: Path = ROOT) -> str:
    """What `buf breaking` finds in protos/ of the working tree, compared with those of a commit; ""
    if they are compatible. Raises NoHistoryError."""
    buf = shutil.which("buf", path=str(Path(sys.executable).parent)) or "buf"
    with tempfile.TemporaryDirectory() as folder:
        extract(commit, Path(folder), "protos", "buf.yaml", root=root)
        done = subprocess.run(
            [buf, "breaking", str(root), "--against", folder], capture_output=True, text=True
        )
    return (done.stdout + done.stderr).strip() if done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.wire_breaking", description=__doc__)
    parser.add_argument(
        "--from", dest="earlier", help="a commit; the default is the earlier version's"
    )
    earlier = parser.parse_args().earlier
    try:
        commit = commit_of(earlier) if earlier else earlier_commit()
        found = breaking_changes(commit)
    except NoHistoryError as error:
        print(f"protos were not compared: {error}", file=sys.stderr)
        return 0
    if found:
        print(found, file=sys.stderr)
        print(f"protos/ cannot be mixed with commit {commit[:8]}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
