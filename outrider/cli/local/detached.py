"""`python -m outrider.cli.local.detached STATE_DIR`: the supervisor that `outrider up --detach`
leaves behind. It reads the mesh's shape from its input, not from its command line."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from outrider.cli.local.mesh import MeshOptions, ServedModel
from outrider.errors import OutriderError


def dump(options: MeshOptions) -> bytes:
    """What `main` reads."""
    return json.dumps(asdict(options), default=str).encode()


def load(data: bytes) -> MeshOptions:
    """What `dump` wrote."""
    values = json.loads(data)
    models = tuple(ServedModel(**row) for row in values.pop("models"))
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return MeshOptions(models=models, **values | lists)


def main() -> int:
    """Run the mesh until it is told to stop."""
    from outrider.cli.local.up import run

    try:
        asyncio.run(run(load(sys.stdin.buffer.read()), Path(sys.argv[1])))
    except OutriderError as error:
        print(f"outrider: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
