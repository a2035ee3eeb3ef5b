"""Trains a draft model from a target's own replies; README.md beside this file has the steps.

python -m tools.train_draft generate --split train --replies runs/train --share 0/2
python -m tools.train_draft train --replies runs/train --run runs/a
python -m tools.train_draft export --run runs/a --replies runs/calibration --out a.draft.gguf
python -m tools.train_draft evaluate --draft a.draft.gguf --replies runs/held_out runs/unlike
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.train_draft.draft_file import QUANTISATIONS
from tools.train_draft.prompts import SPLITS


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="the target's name; empty: the default model")
    actions = parser.add_subparsers(dest="action", required=True)
    _add_generate(actions.add_parser("generate", help="have the target answer chats"))
    _add_train(actions.add_parser("train", help="distil (needs torch)"))
    _add_export(actions.add_parser("export", help="write and calibrate the shipped file"))
    _add_recalibrate(actions.add_parser("recalibrate", help="calibrate a file anew"))
    _add_sources(actions.add_parser("calibrate-sources", help="fit the calibration of sources"))
    _add_evaluate(actions.add_parser("evaluate", help="measure a file"))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one action."""
    arguments = parse(argv)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Imported here: only `train` needs torch, and nothing else does.
    if arguments.action == "train":
        from tools.train_draft.training import train

        train(arguments)
    elif arguments.action == "generate":
        from tools.train_draft.generation import produce

        produce(
            arguments.replies,
            arguments.split,
            arguments.share,
            arguments.chats,
            arguments.minutes * 60,
            model=arguments.model,
        )
    else:
        from tools.train_draft import evaluation

        getattr(evaluation, arguments.action.replace("-", "_"))(arguments)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument("--replies", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--share", type=_share, default=(0, 1), metavar="I/N")
    parser.add_argument("--chats", type=int, default=40_000)
    parser.add_argument("--minutes", type=float, default=25.0)


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replies", type=Path, required=True, nargs="+", metavar="FOLDER")
    parser.add_argument("--run", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--layers",
        type=_numbers,
        default=(),
        metavar="N,N,...",
        help="of the target, to begin with; else four, evenly apart",
    )
    parser.add_argument(
        "--device", default="auto", help="auto (a GPU if there is one), cpu, cuda or cuda:N"
    )
    parser.add_argument(
        "--start",
        type=Path,
        metavar="FILE",
        help="a draft to begin as, in place of layers of the target, with its head's ids",
    )
    parser.add_argument("--head-rows", type=int, default=8192)
    parser.add_argument("--minutes", type=float, default=50.0, help="unless --steps is given")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--rate", type=float, default=8e-4)
    parser.add_argument("--batch-tokens", type=int, default=3072)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quantised-from", type=float, default=0.5, metavar="PROGRESS")
    parser.add_argument("--threads", type=int, default=2)


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--replies", type=Path, required=True, nargs="+", metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--layers", choices=QUANTISATIONS, default="Q4_1")
    parser.add_argument("--head", choices=QUANTISATIONS, default="Q8_0")
    parser.add_argument("--threads", type=int, default=2)


def _add_recalibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draft", type=Path, required=True, metavar="FILE")
    parser.add_argument("--replies", type=Path, required=True, nargs="+", metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--threads", type=int, default=2)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draft", type=Path, required=True, metavar="FILE")
    parser.add_argument("--replies", type=Path, required=True, nargs="+", metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FILE", help="else the package's own file")
    parser.add_argument("--threads", type=int, default=2)


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draft", type=Path, required=True, metavar="FILE")
    parser.add_argument("--replies", type=Path, required=True, nargs="+", metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--threads", type=int, default=2)


def _share(text: str) -> tuple[int, int]:
    part, _, whole = text.partition("/")
    if not 0 <= int(part) < int(whole):
        raise argparse.ArgumentTypeError(f"{text} is no share; 0/2 is the first of two")
    return int(part), int(whole)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
