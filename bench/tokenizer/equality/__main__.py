"""Equality on whole books in twelve languages: ids of the parts of an exact cut, of the fast
backends and of `outrider tokenize` against those of the book encoded at once by the reference, for
five vocabularies; and how many books naive cuts get wrong."""

from __future__ import annotations

import sys

from bench.harness.figures import parser, start
from bench.tokenizer.equality.measuring import measure


def main() -> int:
    run = start("tokenizer_equality", parser("tokenizer.equality", __doc__ or "").parse_args())
    run.figures["differences"] = measure(run)
    run.finish()
    return int(bool(run.figures["differences"]))


if __name__ == "__main__":
    sys.exit(main())
