"""How long the parts of a round take, and what that says of the time left (pure)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bench.wan.plan import Part, Size

REFERENCE_START_S = 20.0
"""Until the reference makes its first reply."""


@dataclass(slots=True)
class Progress:
    """Of one run; seconds since measuring began."""

    size: Size
    limit_s: float = math.inf
    """When the run has to be over, the reference's replies included."""
    reply_s: float = 0.0
    """What the reference needs for one."""
    _took_s: dict[tuple[float, int], float] = field(default_factory=dict)

    def took(self, rtt_ms: float, part: int, seconds: float) -> None:
        """The part of this number, among all that were to be done at an RTT, took so long."""
        self._took_s[rtt_ms, part] = seconds

    def round_s(self, turn: int, done: int = 0) -> float:
        """A round's time, but for the first `done` of its steps, by what they took last."""
        steps = self.steps(turn)[done:]
        return sum(self._took_s.get(step, 0.0) for step in steps)

    def steps(self, turn: int) -> list[tuple[float, int]]:
        """RTT and number of part of all that a round does, in its order."""
        rtts_ms = self.size.rtts_ms
        first = turn % len(rtts_ms)
        return [
            (rtt_ms, number)
            for rtt_ms in (*rtts_ms[first:], *rtts_ms[:first])
            for number, part in enumerate(self.size.parts)
            if rtt_ms in part.rtts_ms and turn < part.rounds
        ]

    def num_rounds(self, turn: int, now_s: float) -> int:
        """How many rounds the run will have, from the beginning of this one on; the first is
        always made."""
        end_s = now_s
        for number in range(turn, self.size.rounds):
            end_s += self.round_s(number)
            if number and end_s + self._reference_s(number + 1) > self.limit_s:
                return number
        return self.size.rounds

    def left_s(self, turn: int, done: int, now_s: float) -> float:
        """Time to the end of the run, after so many steps of a round; of what was never done
        nothing is known."""
        end_s = now_s + self.round_s(turn, done)
        num_rounds = max(turn + 1, self.num_rounds(turn + 1, end_s))
        later_s = sum(self.round_s(number) for number in range(turn + 1, num_rounds))
        return end_s - now_s + later_s + self._reference_s(num_rounds)

    def _reference_s(self, num_rounds: int) -> float:
        """For the replies of so many rounds."""
        temperatures = {part.temperature for part in self.size.parts}
        count = sum(
            max((p.num_prompts for p in self._asked(turn, temperature)), default=0)
            for turn in range(num_rounds)
            for temperature in temperatures
        )
        return len(temperatures) * REFERENCE_START_S + count * self.reply_s

    def _asked(self, turn: int, temperature: float) -> list[Part]:
        parts = self.size.parts
        return [p for p in parts if turn < p.rounds and p.temperature == temperature]
