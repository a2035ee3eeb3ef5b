"""Compiled grammars that are kept for further replies, each for the trust group that sent it."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.lru_map import LruMap
from outrider.sampling.grammar import Grammar
from services.inference.grammars.compiler import CompiledGrammar

MAX_KEPT = 32
"""Most compiled grammars: usually some 100 KiB each, and at most 40 MiB
(trial.LIMITS.max_lexer_states)."""
MAX_KEPT_OF_GROUP = 16
"""Most compiled grammars of one trust group."""
MAX_USES = 256
"""Replies after which a grammar is compiled anew: what its lexer learns of texts only grows."""


@dataclass(slots=True)
class _Kept:
    compiled: CompiledGrammar
    num_uses: int = 0


class KeptGrammars:
    """Compiled grammars, with limits per group and in total. A group at its limit drops its least
    recently used one. At the total limit, the group with the most drops one: so no group's requests
    make another recompile, unless that one keeps as many, or there are as many groups as
    grammars."""

    def __init__(self) -> None:
        self._groups: LruMap[bytes, LruMap[Grammar, _Kept]] = LruMap(MAX_KEPT)

    def __len__(self) -> int:
        return sum(len(of_group) for _, of_group in self._groups.items())

    def take(self, group: bytes, grammar: Grammar) -> CompiledGrammar | None:
        """For one reply; None where it has to be compiled first."""
        of_group = self._groups.get(group)
        kept = of_group.get(grammar) if of_group is not None else None
        if of_group is None or kept is None:
            return None
        kept.num_uses += 1
        is_worn_out = kept.compiled.is_worn_out
        if is_worn_out or kept.num_uses >= MAX_USES:
            of_group.pop(grammar)
            self._forget_empty(group, of_group)
        return None if is_worn_out else kept.compiled

    def put(self, group: bytes, grammar: Grammar, compiled: CompiledGrammar) -> None:
        """Keep it."""
        of_group = self._groups.get(group)
        if of_group is None:
            of_group = LruMap(MAX_KEPT_OF_GROUP)
            self._groups.put(group, of_group)
        of_group.put(grammar, _Kept(compiled))
        if len(self) > MAX_KEPT:
            # Of several the one that was used least recently.
            most, its = max(self._groups.items(), key=lambda it: len(it[1]))
            its.drop_oldest()
            self._forget_empty(most, its)

    def _forget_empty(self, group: bytes, of_group: LruMap[Grammar, _Kept]) -> None:
        if not len(of_group):
            self._groups.pop(group)
