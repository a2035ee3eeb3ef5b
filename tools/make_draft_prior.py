"""Make the draft prior of a model from its own replies.

    python -m tools.make_draft_prior replies > replies.jsonl
    python -m tools.make_draft_prior build --replies replies.jsonl

`replies` answers the prompts of tools/draft_prior_prompts.py, every second one greedily and the
others at temperature 0.8; it takes about half an hour on one core. `build` counts them.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import ModelSpec, lookup
from outrider.models.chat import Message
from outrider.models.loading import load_vocabulary
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.speculation.ngrams import MAX_ORDER, Table, keys, pack
from outrider.speculation.prior import NUM_ORDERS, to_bytes
from services.inference.reference import generate
from tools.draft_prior_prompts import prompts

DATA = Path(__file__).resolve().parents[1] / "outrider" / "speculation" / "data"
MAX_TOKENS = 224
LEAST_COUNT = 2
"""What followed only once is left out: it is most of the table, and guesses hardly better."""


def replies(spec: ModelSpec, vocabulary: Vocabulary) -> Iterator[dict[str, list[int]]]:
    """Prompt and reply ids. The order decides which replies are greedy and their seeds."""
    engine = create_engine(EngineConfig(model=spec.name))
    asked = prompts()
    random.Random(5).shuffle(asked)
    for number, text in enumerate(asked):
        ids = vocabulary.encode_chat([Message("user", text)])
        temperature = 0.8 if number % 2 else 0.0
        sampling = SamplingParams(temperature=temperature, seed=number, max_tokens=MAX_TOKENS)
        reply = generate(
            engine,
            ids,
            sampling,
            lambda params: ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer()),
        )
        yield {"prompt": list(ids), "reply": list(reply.ids)}


def count(path: Path) -> list[Table]:
    """The commonest successor of every context, by order."""
    counts = [defaultdict[int, Counter[int]](Counter) for _ in range(NUM_ORDERS)]
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        ids = row["prompt"][-MAX_ORDER:] + row["reply"]
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
    parser.add_argument("action", choices=["replies", "build"])
    parser.add_argument("--model", default="", help="model name; empty: the default model")
    parser.add_argument("--replies", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one action."""
    arguments = parse(argv)
    spec = lookup(arguments.model)
    vocabulary = load_vocabulary(spec, ModelStore(default_root()))
    if arguments.action == "replies":
        for row in replies(spec, vocabulary):
            print(json.dumps(row), flush=True)
        return
    tables = count(arguments.replies)
    path = DATA / f"{spec.name}.v1.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(to_bytes(vocabulary.digest, tables))
    print(f"{path.name}: {[len(table) for table in tables]} contexts, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
