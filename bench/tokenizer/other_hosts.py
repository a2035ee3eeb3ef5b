"""What articles say of distributed tokenization, as one table: one text by one process alone, by
one worker and by four on another host, with one of them lost, and in a vocabulary that was replaced
meanwhile; and what the network between service and workers carries.

The hosts are network namespaces of this machine with a virtual cable between them, with mutual TLS:
they share its cores, so that more workers are no faster than these allow.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Final

from bench.harness import Run, parser, start
from bench.tokenizer.service import long_text
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.tokenization.backends.base import REFERENCE
from tests.tokenizer.long_texts.far import Far, far_workers

TEXT_BYTES: Final = 16_000_000
QUICK_BYTES: Final = 2_000_000
KILL_AT_BLOCK: Final = 20
FEWER_MERGES: Final = 10_000
_CABLE: Final = "cable:"
_COUNTERS: Final = {"received": 0, "sent": 8}
"""Columns of /proc/net/dev (proc(5)) with bytes."""


@dataclass(frozen=True, slots=True)
class TextResult:
    """One text through the service."""

    seconds: float
    is_right: bool
    sent: int
    """Bytes from the service's host to that of the workers."""
    received: int


def measure(run: Run, vocabulary: Vocabulary) -> int:
    """Adds the table; returns how many texts had other ids than the reference gives."""
    text = long_text(QUICK_BYTES if run.quick else TEXT_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(run, vocabulary, text, Path(folder)))


async def _measure(run: Run, vocabulary: Vocabulary, text: str, folder: Path) -> int:
    begun = perf_counter()
    expected = array("I", vocabulary.encode(text))
    alone_s = perf_counter() - begun
    num_bytes = len(text.encode())
    (folder / "text").write_bytes(text.encode())
    folders = {"now": folder / "now", "before": folder / "before"}
    older = predecessor(vocabulary)
    for path, saved in zip(folders.values(), (vocabulary, older), strict=True):
        path.mkdir()
        saved.save(path)
    table = run.table(
        f"One text of {num_bytes / 1e6:.0f} MB by `tokenizers`, in one process and by workers on "
        "another host",
        "what tokenizes",
        "time, s",
        "MB/s",
        "bytes to workers per byte",
        "bytes back per byte",
        "ids are the reference's",
    )
    table.add("one process alone", alone_s, num_bytes / 1e6 / alone_s, 0.0, 0.0, "True")
    num_wrong = 0
    plans = (
        ("one worker", 1, False, "now"),
        ("four workers", 4, False, "now"),
        ("four workers, one killed", 4, True, "now"),
        ("four workers, in a vocabulary that was replaced", 4, False, "before"),
    )
    for title, num_workers, is_killed, words in plans:
        wanted = expected if words == "now" else array("I", older.encode(text))
        result = await _one(folder, folders, words, wanted, num_workers, is_killed=is_killed)
        rates = (num / num_bytes for num in (result.sent, result.received))
        speed = num_bytes / 1e6 / result.seconds
        table.add(title, result.seconds, speed, *rates, str(result.is_right))
        num_wrong += not result.is_right
    table.note("Bytes are those of the link, with TLS, HTTP/2 and TCP, vocabularies included.")
    return num_wrong


def predecessor(vocabulary: Vocabulary) -> Vocabulary:
    """One with fewer merges, which gives other ids."""
    definition = json.loads(vocabulary.tokenizer_json)
    del definition["model"]["merges"][-FEWER_MERGES:]
    facts = replace(vocabulary.facts, digest_hex=bytes(32).hex())
    return Vocabulary(json.dumps(definition), facts)


async def _one(
    folder: Path,
    folders: Mapping[str, Path],
    words: str,
    expected: array[int],
    num_workers: int,
    *,
    is_killed: bool,
) -> TextResult:
    """In a mesh of its own, whose service has both vocabularies."""
    previous = f"{DEFAULT_MODEL.name}={folders['before']}"
    ids = folder / "ids"
    async with far_workers(folder) as mesh:
        await mesh.serve(worker_processes=0, backend=REFERENCE, previous_vocabularies=previous)
        workers = [mesh.worker(f"worker-{number}") for number in range(num_workers)]
        await mesh.joined(num_workers)
        before = _counters(mesh)
        client = await mesh.tokenize(folder / "text", ids, folders[words])
        line = b"1"
        while b"." not in line:
            if is_killed and int(line) == KILL_AT_BLOCK:
                os.kill(workers[0].pid, signal.SIGKILL)
            client.stdin.write(b"\n")
            line = await client.stdout.readline()
        await client.finish()
        after = _counters(mesh)
        found = array("I", ids.read_bytes())
    ids.unlink()
    used = {name: after[name] - before[name] for name in _COUNTERS}
    return TextResult(float(line), found == expected, used["sent"], used["received"])


def _counters(mesh: Far) -> dict[str, int]:
    """Bytes of the service's end of the cable; zeros where it has none."""
    if not mesh.near.is_apart:
        return dict.fromkeys(_COUNTERS, 0)
    lines = Path(f"/proc/{mesh.started[0].pid}/net/dev").read_text("ascii").splitlines()
    (line,) = (it for it in lines if it.strip().startswith(_CABLE))
    cells = line.partition(":")[2].split()
    return {name: int(cells[column]) for name, column in _COUNTERS.items()}


def main() -> int:
    run = start("tokenizer_hosts", parser("tokenizer.other_hosts", __doc__ or "").parse_args())
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    num_wrong = measure(run, vocabulary)
    run.finish()
    return int(bool(num_wrong))


if __name__ == "__main__":
    sys.exit(main())
