"""What our files use of the private parts of aioquic and anycorn is in the installed releases what
it was when it was read. `python -m tools.library_internals --try aioquic` tries a newer one."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from services.edge.quic.aioquic_shim import AIOQUIC_VERSION
from tools.library_internals import LIBRARIES, changes, installed, recorded

ROOT = Path(__file__).parent.parent
USER = "services/edge/quic/aioquic_streams.py"


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_the_installed_release_is_what_was_read(library: str) -> None:
    assert changes(library, recorded()[library], installed(library)) == []


def test_an_edge_starts_with_the_release_that_was_read_alone() -> None:
    assert recorded()["aioquic"].version == AIOQUIC_VERSION


def test_a_release_that_differs_is_told_of_in_one_sentence_for_each_part() -> None:
    read = recorded()["aioquic"]
    parts = read.parts[USER]
    other = {name: it for name, it in parts.items() if name != "QuicStreamSender._pending"}
    other |= {"QuicStreamSender.reset": "0", "QuicStreamReceiver._next": "1"}
    assert changes("aioquic", read, replace(read, version="9.0", parts={USER: other})) == [
        f"aioquic 9.0: QuicStreamReceiver._next is new, and {USER} uses the name.",
        f"aioquic 9.0: there is no QuicStreamSender._pending any more, which {USER} uses.",
        f"aioquic 9.0: QuicStreamSender.reset is not what it was in {read.version}; {USER} uses or "
        "replaces it.",
    ]


def test_anycorn_is_used_by_these_files_alone() -> None:
    sources = [it for folder in ("outrider", "services") for it in (ROOT / folder).rglob("*.py")]
    users = {
        str(source.relative_to(ROOT))
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "anycorn"
    }
    assert users == set(LIBRARIES["anycorn"].users)
