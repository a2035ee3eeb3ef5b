"""Guesses of the draft sources on recorded replies, and the calibration of their confidence.

Every source is asked for every token of every reply, the text before it being the target's own, as
in a chat whose drafts were all right so far. Nothing is carried from one reply to the next: the fit
is for the first chat of an edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.engines.base import Engine
from outrider.engines.draft_calibration import DraftCalibration
from outrider.sampling.params import SamplingParams
from outrider.speculation.calibration import (
    LEAST_SLOPE,
    MOST_SHIFT,
    MOST_SLOPE,
    POSITION_BEGINS,
    Lines,
    Platt,
    SourceCalibrations,
    logit,
    position_bucket,
)
from outrider.speculation.ngram_store import NgramStatistics
from outrider.speculation.ngrams import NgramPrior
from outrider.speculation.suffix_drafter import SuffixDrafter
from services.edge.drafter.branch import best_draft
from services.edge.drafter.calibration import SOURCE_NAMES, OnlineCalibration
from services.edge.drafter.proposer import Proposer, TokenEstimate
from services.edge.session.draft_sources import CopyDrafter
from tools.train_draft.agreement import read, replies_with_room
from tools.train_draft.calibration import Bools, Floats
from tools.train_draft.replies import Reply

_POOLED_BELIEF = 1.0
_BUCKET_BELIEF = 4.0
"""Precision of the prior of shift and slope: how sure it is that all positions of a source together
are as its confidence says, and that one bucket is as all of them. An observation of an even chance
weighs a quarter, so 4 is as much as 16 of these."""
_NEWTON_STEPS = 25


@dataclass(frozen=True, slots=True)
class SourceGuess:
    """A source's guess for one token of a reply."""

    source: str
    are_sampled: bool
    position: int
    confidence: float
    right: bool


class GuessReader:
    """Asks all sources of an edge for the tokens of recorded replies."""

    def __init__(
        self, engine: Engine, calibration: DraftCalibration, prior: NgramPrior | None
    ) -> None:
        """`engine` and `calibration` are the draft model's."""
        self._engine = engine
        self._calibration = calibration
        self._prior = prior
        self._plain = OnlineCalibration.starting(SourceCalibrations(), are_sampled=False)

    def guesses(self, replies: Iterable[Reply]) -> Iterator[SourceGuess]:
        """Guesses of all sources, for all tokens of the replies that the engine has room for."""
        for reply in replies_with_room(self._engine, replies):
            yield from self._copies(reply)
            yield from self._drafters(reply)

    def _copies(self, reply: Reply) -> Iterator[SourceGuess]:
        """Guesses of the edge's own copies."""
        copies = CopyDrafter(self._engine.info.max_context_tokens)
        copies.extend(reply.prompt.tolist())
        for position, token in enumerate(reply.ids.tolist()):
            guess = copies.draft_after((), 1)
            if guess.ids:
                right = guess.ids[0] == token
                yield SourceGuess(
                    guess.sources[0], reply.temperature > 0, position, guess.survival[0], right
                )
            copies.extend((token,))

    def _drafters(self, reply: Reply) -> Iterator[SourceGuess]:
        """Guesses of the drafter's sources, beside each other."""
        info, prompt, are_sampled = self._engine.info, reply.prompt.tolist(), reply.temperature > 0
        params = SamplingParams(temperature=reply.temperature, seed=reply.seed)
        proposer = Proposer(params, info.vocabulary_size, prompt, self._calibration)
        copier = SuffixDrafter(
            info.max_context_tokens,
            NgramStatistics(self._prior),
            num_prompt=len(prompt),
            sampled=are_sampled,
        )
        copier.extend(prompt)
        rows = read(self._engine, reply)
        for position, token in enumerate(reply.ids.tolist()):
            columns = None if rows.ids is None else rows.ids[position]
            proposal = proposer.propose(rows.logits[position], columns, len(prompt) + position, ())
            guess = copier.draft_after((), 1)
            copied = TokenEstimate(guess.ids[0], guess.survival[0]) if guess.ids else None
            draft = best_draft(copied, proposal, self._plain, position)
            for said in draft.estimates if draft else ():
                yield SourceGuess(
                    SOURCE_NAMES[said.source],
                    are_sampled,
                    position,
                    said.estimate.probability,
                    said.estimate.token == token,
                )
            copier.extend((token,))
            proposer.observe((token,))


def fit_sources(guesses: Iterable[SourceGuess]) -> SourceCalibrations:
    """One line per source, kind of reply and bucket of positions."""
    by_source: dict[tuple[bool, str], list[SourceGuess]] = {}
    for guess in guesses:
        by_source.setdefault((guess.are_sampled, guess.source), []).append(guess)
    greedy, sampled = (
        {source: _lines(found) for (kind, source), found in by_source.items() if kind == wanted}
        for wanted in (False, True)
    )
    return SourceCalibrations(greedy, sampled)


def _lines(guesses: Sequence[SourceGuess]) -> Lines:
    confidence = np.array([logit(guess.confidence) for guess in guesses])
    right = np.array([guess.right for guess in guesses])
    buckets = np.array([position_bucket(guess.position) for guess in guesses])
    pooled = fit_platt(confidence, right, Platt(), _POOLED_BELIEF)
    return tuple(
        fit_platt(confidence[buckets == at], right[buckets == at], pooled, _BUCKET_BELIEF)
        for at in range(len(POSITION_BEGINS))
    )


def fit_platt(confidence: Floats, right: Bools, prior: Platt, belief: float) -> Platt:
    """The likeliest line for confidences (log-odds [n]) and whether they were `right`, by Newton's
    method; shift and slope have a normal prior of precision `belief` around those of `prior`."""
    inputs = np.stack([np.ones(len(confidence)), confidence], axis=1)
    centre = np.array([prior.shift, prior.slope])
    line = centre.copy()
    for _ in range(_NEWTON_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(inputs @ line, -30, 30)))
        gradient = inputs.T @ (right - chances) - belief * (line - centre)
        weights = (chances * (1 - chances))[:, None]
        curvature = inputs.T @ (inputs * weights) + belief * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        line = line + np.clip(step, -1.0, 1.0)
    return Platt(
        round(float(np.clip(line[0], -MOST_SHIFT, MOST_SHIFT)), 3),
        round(float(np.clip(line[1], LEAST_SLOPE, MOST_SLOPE)), 3),
    )


def sources_table(guesses: Sequence[SourceGuess], fitted: SourceCalibrations) -> str:
    """The sources' guesses by place, as a Markdown table: their number, the mean confidence, the
    mean confidence after the fit, and the share that was right."""
    lines = [
        "| source | mode | reply token | guesses | confidence | fitted | right |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    names = [*(str(begin + 1) for begin in POSITION_BEGINS[:3]), "4-8", "9+"]
    kinds: Mapping[bool, Mapping[str, Lines]] = {False: fitted.greedy, True: fitted.sampled}
    for are_sampled, by_source in kinds.items():
        for source, by_place in sorted(by_source.items()):
            for at, line in enumerate(by_place):
                found = [
                    guess
                    for guess in guesses
                    if (guess.are_sampled, guess.source) == (are_sampled, source)
                    and position_bucket(guess.position) == at
                ]
                if found:
                    confidence = np.mean([guess.confidence for guess in found])
                    fitted_chance = np.mean([line.chance(guess.confidence) for guess in found])
                    right = np.mean([guess.right for guess in found])
                    mode = "sampled" if are_sampled else "greedy"
                    lines.append(
                        f"| {source} | {mode} | {names[at]} | {len(found)} | {confidence:.2f} "
                        f"| {fitted_chance:.2f} | {right:.2f} |"
                    )
    return "\n".join(lines)
