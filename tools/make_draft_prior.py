"""Make the draft prior of a model from its own replies.

    python -m tools.train_draft generate --replies runs/train --minutes 25
    python -m tools.make_draft_prior --replies runs/train

The replies are those that its draft model learns from too.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.speculation.ngrams import MAX_ORDER, Table, keys, pack
from outrider.speculation.shipped import NUM_ORDERS, prior_to_bytes
from tools.train_draft.replies import Reply, load

DATA = Path(__file__).resolve().parents[1] / "outrider" / "speculation" / "data"
LEAST_COUNT = 2
"""Least times that a token must follow to be kept. Those seen only once are most of the table, and
improve guesses hardly at all."""


def count(replies: Iterable[Reply]) -> list[Table]:
    """The commonest successor of every context, by order."""
    counts = [defaultdict[int, Counter[int]](Counter) for _ in range(NUM_ORDERS)]
    for reply in replies:
        ids = [*reply.prompt[-MAX_ORDER:].tolist(), *reply.ids.tolist()]
        for at in range(MAX_ORDER, len(ids)):
            for order, key in enumerate(keys(ids[at - MAX_ORDER : at])[:NUM_ORDERS]):
                counts[order][key][ids[at]] += 1
    return [_strongest(table) for table in counts]


def _strongest(counts: dict[int, Counter[int]]) -> Table:
    table: Table = {}
    for key, successors in counts.items():
        # Equal counts in id order, so that the table is a function of its input.
        token, hits = min(successors.items(), key=lambda item: (-item[1], item[0]))
        share = (hits - 0.5) / successors.total()
        if hits >= LEAST_COUNT:
            table[key] = pack(token, 1 if share < 0.3 else 2 if share < 0.6 else 4)
    return table


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="model name; empty: the default model")
    parser.add_argument("--replies", type=Path, required=True, nargs="+", metavar="FOLDER")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Counts, and writes the file."""
    arguments = parse(argv)
    spec = lookup(arguments.model)
    vocabulary = load_vocabulary(spec, ModelStore(default_root()))
    replies = [reply for folder in arguments.replies for reply in load(folder)]
    tables = count(replies)
    path = DATA / f"{spec.name}.v1.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(prior_to_bytes(vocabulary.tokens_digest, tables))
    print(
        f"{path.name}: {[len(table) for table in tables]} contexts, {path.stat().st_size} bytes, "
        f"from {len(replies)} replies, {sum(len(reply.ids) for reply in replies)} tokens"
    )


if __name__ == "__main__":
    main()
