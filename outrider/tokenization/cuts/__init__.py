"""Where a text may be cut so that its parts' ids joined are the whole text's ids."""

from outrider.tokenization.cuts.cutter import Cutter
from outrider.tokenization.cuts.proofs import UnprovenError, prove
from outrider.tokenization.cuts.rules import CutRule

__all__ = ["CutRule", "Cutter", "UnprovenError", "prove"]
