"""Has neutral judges test a mesh, and keeps their reports in docs/judges.

`python -m bench.judges NAME` starts a mesh of the default model on this machine;
`--url http://HOST:PORT/v1 --key KEY --model NAME` judges one that runs. The code is not 0 if the
judge found a fault that is not expected.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

from bench.harness.local_mesh import local_mesh
from bench.judges import compatcanary, llamacpp_tests, llm_comply, schemathesis
from bench.judges.clients import LANGCHAIN, LITELLM, NIQUESTS
from bench.judges.target import Target
from outrider.cli.local import development_key
from outrider.models.catalog import DEFAULT_MODEL

JUDGES: Final[dict[str, Callable[[Target], int]]] = {
    "llm_comply": llm_comply.judge,
    "compatcanary": compatcanary.judge,
    "schemathesis": schemathesis.judge,
    "llamacpp_tests": llamacpp_tests.judge,
    "niquests": NIQUESTS.judge,
    "langchain": LANGCHAIN.judge,
    "litellm": LITELLM.judge,
}
_FAKE_ENOUGH: Final = frozenset({"schemathesis"})
"""Judges of the door alone: thousands of replies, of which nobody reads a word."""
_OPEN: Final = frozenset({"llamacpp_tests"})
"""Judges that send no key."""
_RAMBLING: Final = frozenset({"llm_comply"})
"""Judges that set no limit to replies, and a small model may ramble up to its own."""
_MAX_CONTEXT_TOKENS: Final = 512
"""Of a mesh that is started for these."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.judges", description=__doc__)
    parser.add_argument("which", choices=tuple(JUDGES))
    parser.add_argument("--url", help="of the API, ending in /v1; without it a mesh is started")
    parser.add_argument("--key", default="", help="of the edge; without it none is sent")
    parser.add_argument("--model", default=DEFAULT_MODEL.name)
    parser.add_argument("--engine", help="of the mesh that is started: openvino or fake")
    arguments = parser.parse_args()
    with _target(arguments) as target:
        return JUDGES[arguments.which](target)


@contextlib.contextmanager
def _target(arguments: argparse.Namespace) -> Iterator[Target]:
    if arguments.url:
        yield Target(arguments.url.rstrip("/"), arguments.key, arguments.model)
        return
    which = arguments.which
    engine = arguments.engine or ("fake" if which in _FAKE_ENOUGH else "openvino")
    settings = ("edge.access.http_anonymous=true",) if which in _OPEN else ()
    if which in _RAMBLING:
        settings = (*settings, f"inference.max_context_tokens={_MAX_CONTEXT_TOKENS}")
    with local_mesh(regions="local", engine=engine, settings=settings, http=True) as mesh:
        port = mesh.state.service("edge")["http_port"]
        key = "" if which in _OPEN else development_key.read(mesh.state_dir)
        url = f"http://{mesh.state.host}:{port}/v1"
        yield Target(url, key, arguments.model, mesh.edge[1], str(mesh.ca), engine)


if __name__ == "__main__":
    sys.exit(main())
