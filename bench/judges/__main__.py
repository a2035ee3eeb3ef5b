"""Has neutral judges test a mesh, and keeps their reports in docs/judges.

`python -m bench.judges llm_comply` starts a mesh of the default model on this machine;
`--url http://HOST:PORT/v1 --key KEY --model NAME` judges one that runs. The code is not 0 if the
judge found a fault that is not expected.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

from bench.harness.local_mesh import local_mesh
from bench.judges import llm_comply
from bench.judges.target import Target
from outrider.cli.local import development_key
from outrider.models.catalog import DEFAULT_MODEL

_MAX_CONTEXT_TOKENS = 512
"""Of a mesh that is started. Judges set no limit, and a small model may ramble up to its own."""
JUDGES = {"llm_comply": llm_comply.judge}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.judges", description=__doc__)
    parser.add_argument("which", choices=tuple(JUDGES))
    parser.add_argument("--url", help="of the API, ending in /v1; without it a mesh is started")
    parser.add_argument("--key", default="none", help="of the edge")
    parser.add_argument("--model", default=DEFAULT_MODEL.name)
    arguments = parser.parse_args()
    with _target(arguments) as target:
        return JUDGES[arguments.which](target)


@contextlib.contextmanager
def _target(arguments: argparse.Namespace) -> Iterator[Target]:
    if arguments.url:
        yield Target(arguments.url.rstrip("/"), arguments.key, arguments.model)
        return
    settings = (f"inference.max_context_tokens={_MAX_CONTEXT_TOKENS}",)
    with local_mesh(regions="local", settings=settings, http=True) as mesh:
        port = mesh.state.service("edge")["http_port"]
        key = development_key.read(mesh.state_dir)
        yield Target(f"http://127.0.0.1:{port}/v1", key, arguments.model)


if __name__ == "__main__":
    sys.exit(main())
