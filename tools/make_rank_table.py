"""Make a rank table for the token codec RANK_VARINT, and measure the codecs.

    python -m tools.make_rank_table prompts > prompts.jsonl
    outrider reference --prompt-file prompts.jsonl --max-tokens 160 --json > replies.jsonl
    python -m tools.make_rank_table build --prompts prompts.jsonl --replies replies.jsonl \\
        --text README.md docs/*.md
    python -m tools.make_rank_table measure --replies other.jsonl --text other.txt

`--replies` files hold JSON objects with `ids`, one per line; `--prompts` files JSON strings, one
per line. A published table is never rebuilt under the same version (outrider/codec/ranks.py).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.codec.ranks import RankTable, shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.catalog import lookup
from outrider.models.chat import Message
from outrider.models.loading import load_vocabulary
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary
from tools.rank_table_prompts import prompts

DATA = Path(__file__).resolve().parents[1] / "outrider" / "codec" / "data"
NUM_TOP = 4096
VERSION = 1


def sequences(arguments: argparse.Namespace, vocabulary: Vocabulary) -> Iterator[list[int]]:
    """The id sequences of all input files."""
    for path in arguments.prompts:
        for line in path.read_text("utf-8").splitlines():
            yield vocabulary.encode_chat([Message("user", json.loads(line))])
    for path in arguments.replies:
        for line in path.read_text("utf-8").splitlines():
            yield json.loads(line)["ids"]
    for path in arguments.text:
        yield vocabulary.encode(path.read_text("utf-8"))


def build(arguments: argparse.Namespace, vocabulary: Vocabulary) -> None:
    """Counts the ids of the input files and writes the table."""
    counts = Counter(i for ids in sequences(arguments, vocabulary) for i in ids)
    # Equal counts in id order, so that the table is a function of its input.
    frequent = sorted(counts, key=lambda i: (-counts[i], i))[:NUM_TOP]
    table = RankTable(vocabulary.digest, vocabulary.size, frequent, VERSION)
    path = DATA / f"{lookup(arguments.model).name}.v{VERSION}.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(table.to_bytes())
    print(f"{path.name}: {len(frequent)} ids of {counts.total()} tokens, {path.stat().st_size} B")


def measure(arguments: argparse.Namespace, vocabulary: Vocabulary) -> None:
    """Prints payload bytes per token of each codec, and UTF-8 text beside them."""
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.digest))
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
    parser.add_argument("action", choices=["prompts", "build", "measure"])
    parser.add_argument("--model", default="", help="model name; empty: the default model")
    for name in ("prompts", "replies", "text"):
        parser.add_argument(f"--{name}", type=Path, nargs="*", default=[], metavar="FILE")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one action."""
    arguments = parse(argv)
    if arguments.action == "prompts":
        print("\n".join(json.dumps(prompt) for prompt in prompts()))
        return
    vocabulary = load_vocabulary(lookup(arguments.model), ModelStore(default_root()))
    {"build": build, "measure": measure}[arguments.action](arguments, vocabulary)


if __name__ == "__main__":
    main()
