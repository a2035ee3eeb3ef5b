"""Records the finished shards of a run, so that another run can resume after a kill. Pure.

The journal is one line of JSON per finished shard, after a line that identifies the run. Only whole
lines count: the last one may have been cut off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from outrider.bulk.plan.results import ShardResult
from outrider.bulk.plan.shards import BulkSettings, SourceFile
from outrider.errors import InvalidRequestError

_FORM: Final = 1
"""A new number whenever the same input gives other output."""


def fingerprint(
    sources: Sequence[SourceFile], settings: BulkSettings, digest: bytes, writer: str
) -> str:
    """SHA-256, hexadecimal, that is equal for runs with the same output, byte for byte. `digest` is
    of the vocabulary or whatever else determines the rows; `writer` is the library that writes the
    files, with its version."""
    parts = {
        "form": _FORM,
        "settings": asdict(settings),
        "sources": [asdict(source) for source in sources],
        "made_by": digest.hex(),
        "writer": writer,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def head_line(run: str) -> str:
    """The first line, of the run with that fingerprint."""
    return json.dumps({"run": run}) + "\n"


def shard_line(result: ShardResult) -> str:
    """The line of a finished shard."""
    return json.dumps(result.to_json(), ensure_ascii=False) + "\n"


def whole_lines(data: bytes) -> bytes:
    """A journal without a last line that was cut off, be it within a character."""
    return data[: data.rfind(b"\n") + 1]


def finished(data: bytes, run: str) -> dict[int, ShardResult]:
    """The finished shards of a journal, by number. Raises InvalidRequestError if it is another
    run's, or damaged before its last line."""
    *whole, _ = whole_lines(data).split(b"\n")
    if not whole:
        return {}
    try:
        head, *lines = [json.loads(line) for line in whole]
        check_run(head, run)
        results = [ShardResult.from_json(line) for line in lines]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidRequestError(
            f"the journal of the run is damaged ({error}); start again in another folder"
        ) from error
    return {result.number: result for result in results}


def check_run(record: Mapping[str, Any], run: str) -> None:
    """Raises InvalidRequestError unless a journal's head or a manifest is that run's."""
    if record["run"] != run:
        raise InvalidRequestError(
            "the folder holds another run: the files, the options, the vocabulary, the model or "
            "the version of pyarrow are not the same; choose another folder"
        )


def manifest(
    run: str, results: Sequence[ShardResult], settings: BulkSettings, facts: Mapping[str, object]
) -> str:
    """Description of the finished folder, the same for every run with this fingerprint."""
    parts = {
        "run": run,
        **facts,
        "settings": asdict(settings),
        "shards": [result.to_json() for result in results],
    }
    return json.dumps(parts, ensure_ascii=False, indent=1) + "\n"


def of_manifest(text: str, run: str) -> dict[int, ShardResult]:
    """The shards of a finished folder, by number. Raises what `finished` raises."""
    return finished(_as_journal(text), run)


def _as_journal(text: str) -> bytes:
    try:
        record = json.loads(text)
        lines = [json.dumps(shard) for shard in record["shards"]]
        return "\n".join([json.dumps({"run": record["run"]}), *lines, ""]).encode()
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidRequestError(
            f"the manifest is damaged ({error}); start again in another folder"
        ) from error
