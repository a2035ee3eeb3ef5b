"""Has neutral judges test a mesh, and keeps their reports in docs/judges.

`python -m bench.judges NAME...` starts a mesh on this machine for each;
`--url http://HOST:PORT/v1 --key KEY --model NAME` judges one that runs. The code is not 0 if one
found a fault that is not expected, or none where one is.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

from bench.harness.larger_models import LARGER_MODELS, have
from bench.harness.local_mesh import local_mesh
from bench.judges import llm_comply, schemathesis
from bench.judges.target import Target
from outrider.cli.local import development_key
from outrider.models.catalog import DEFAULT_MODEL

JUDGES: Final[dict[str, Callable[[Target], int]]] = {
    "llm_comply": llm_comply.judge,
    "schemathesis": schemathesis.judge,
}
_CONTEXT_TOKENS: Final = {"llm_comply": 512, "schemathesis": 128}
"""Of a mesh that is started for judges that set no limit to replies: a small model may ramble up to
its own, and schemathesis asks for more than a thousand."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.judges", description=__doc__)
    parser.add_argument("which", nargs="+", choices=tuple(JUDGES), metavar="NAME")
    parser.add_argument("--url", help="of the API, ending in /v1; without it a mesh is started")
    parser.add_argument("--key", default="", help="of the edge; without it none is sent")
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL.name,
        help=f"one that the mesh can have, or of the benchmarks' own: {', '.join(LARGER_MODELS)}",
    )
    parser.add_argument("--engine", default="openvino", help="of a mesh started: or fake")
    arguments = parser.parse_args()
    status = 0
    for which in arguments.which:
        with _target(which, arguments) as target:
            status |= JUDGES[which](target)
    return status


@contextlib.contextmanager
def _target(which: str, arguments: argparse.Namespace) -> Iterator[Target]:
    model, engine = arguments.model, arguments.engine
    if arguments.url:
        yield Target(arguments.url.rstrip("/"), arguments.key, model)
        return
    most = _CONTEXT_TOKENS.get(which)
    settings = (f"inference.max_context_tokens={most}",) if most else ()
    file = str(have(LARGER_MODELS[model])) if model in LARGER_MODELS else model
    with local_mesh(
        regions="local", engine=engine, settings=settings, http=True, model=file
    ) as mesh:
        port = mesh.state.service("edge")["http_port"]
        key = development_key.read(mesh.state_dir)
        url = f"http://{mesh.state.host}:{port}/v1"
        yield Target(url, key, model, engine)


if __name__ == "__main__":
    sys.exit(main())
