"""Bulk tokenization on two cores: `outrider tokenize` from files to Parquet, beside the packages
alone, which get the same documents as strings in memory and whose ids are dropped.

The corpus is what is installed with Python: sources, documentation, licences, each file a document,
and again from the first one where that is less than is asked for. Everybody gets all of it, in the
same order.
"""

from __future__ import annotations

import sys

from bench.harness.figures import parser, start
from bench.tokenizer.bulk.measuring import measure


def main() -> int:
    options = parser("tokenizer.bulk", __doc__ or "")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--megabytes", type=int, default=384, help="size of the corpus")
    asked = options.parse_args()
    run = start("tokenizer_bulk", asked)
    rounds, size = (1, 48) if asked.quick else (asked.rounds, asked.megabytes)
    measure(run, rounds=rounds, megabytes=size)
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
