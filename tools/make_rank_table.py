"""Make a rank table for the token codec RANK_VARINT, and measure the codecs.

    python -m tools.train_draft generate --replies runs/train --minutes 25
    python -m tools.make_rank_table build --replies runs/train --text README.md docs/*.md
    python -m tools.make_rank_table measure --replies runs/bench --text other.txt

Prompts and replies are counted as chats. A published table is never rebuilt under the same version
(outrider/codec/ranks.py).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.codec.ranks import RankTable
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from tools.train_draft.replies import load

DATA = Path(__file__).resolve().parents[1] / "outrider" / "codec" / "data"
NUM_TOP = 4096
VERSION = 1


def sequences(arguments: argparse.Namespace, vocabulary: Vocabulary) -> Iterator[list[int]]:
    """The id sequences of all input files."""
    for folder in arguments.replies:
        for reply in load(folder):
            yield reply.prompt.tolist()
            yield reply.ids.tolist()
    for path in arguments.text:
        yield vocabulary.encode(path.read_text("utf-8"))


def build(arguments: argparse.Namespace, vocabulary: Vocabulary) -> None:
    """Counts the ids of the input files and writes the table."""
    counts = Counter(i for ids in sequences(arguments, vocabulary) for i in ids)
    # Equal counts in id order, so that the table is a function of its input.
    frequent = sorted(counts, key=lambda i: (-counts[i], i))[:NUM_TOP]
    table = RankTable(vocabulary.tokens_digest, vocabulary.size, frequent, VERSION)
    path = DATA / f"{lookup(arguments.model).name}.v{VERSION}.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(table.to_bytes())
    print(f"{path.name}: {len(frequent)} ids of {counts.total()} tokens, {path.stat().st_size} B")


def measure(arguments: argparse.Namespace, vocabulary: Vocabulary) -> None:
    """Prints payload bytes per token of each codec, and UTF-8 text beside them."""
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    inputs = [ids for ids in sequences(arguments, vocabulary) if ids]
    num_tokens = sum(map(len, inputs))
    print(f"{len(inputs)} sequences, {num_tokens} tokens; bytes per token")
    text = sum(len(vocabulary.decode(ids, keep_special=True).encode()) for ids in inputs)
    print(f"{'UTF-8 text':12} {text / num_tokens:.3f}")
    for codec in coder.supported:
        whole = sum(len(coder.encode(ids, codec).payload) for ids in inputs)
        print(f"{codec.name:12} {whole / num_tokens:.3f}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["build", "measure"])
    parser.add_argument("--model", default="", help="model name; empty: the default model")
    for name, kind in (("replies", "FOLDER"), ("text", "FILE")):
        parser.add_argument(f"--{name}", type=Path, nargs="*", default=[], metavar=kind)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one action."""
    arguments = parse(argv)
    vocabulary = load_vocabulary(lookup(arguments.model), ModelStore(default_root()))
    {"build": build, "measure": measure}[arguments.action](arguments, vocabulary)


if __name__ == "__main__":
    main()
