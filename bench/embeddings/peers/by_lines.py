"""What the workers of libraries share: a line of JSON with texts in, a line with vectors out. Has
to run without this project's packages."""

import base64
import json
import sys
from collections.abc import Callable
from typing import Any


def serve(settings: dict[str, Any], embed: Callable[[list[str]], Any]) -> None:
    """`embed` makes [n, d] float32 of texts."""
    print(json.dumps(settings), flush=True)
    for line in sys.stdin:
        vectors = embed(json.loads(line)["texts"])
        data = base64.b64encode(vectors.astype("<f4").tobytes()).decode()
        print(json.dumps({"num": len(vectors), "data": data}), flush=True)
