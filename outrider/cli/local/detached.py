"""`python -m outrider.cli.local.detached STATE_DIR`: the supervisor that `outrider up --detach`
leaves behind. It reads the mesh's shape from its input, not from its command line."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from outrider.cli.failures import sentence_of
from outrider.cli.local.mesh import load
from outrider.cli.local.up import run


def main() -> int:
    """Run the mesh until it is stopped."""
    try:
        asyncio.run(run(load(sys.stdin.buffer.read()), Path(sys.argv[1])))
    except Exception as failure:
        if not (told := sentence_of(failure)):
            raise
        print(f"outrider: {told}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
