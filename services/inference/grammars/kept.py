"""Compiled grammars that are kept for further replies, each for the trust group that sent it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from outrider.sampling.grammar import Grammar
from services.inference.grammars.compiler import CompiledGrammar

MAX_KEPT = 32
"""Most compiled grammars: usually some 100 KiB each, and at most 40 MiB
(compiler.LIMITS.max_lexer_states)."""
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
        self._groups: OrderedDict[bytes, OrderedDict[Grammar, _Kept]] = OrderedDict()
        """Each in the order of last use, as the grammars of each are."""

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def take(self, group: bytes, grammar: Grammar) -> CompiledGrammar | None:
        """For one reply; None where it has to be compiled first."""
        kept = self._groups.get(group, OrderedDict()).get(grammar)
        if kept is None:
            return None
        kept.num_uses += 1
        is_worn_out = kept.compiled.is_worn_out
        if is_worn_out or kept.num_uses >= MAX_USES:
            self._drop(group, grammar)
        else:
            self._groups[group].move_to_end(grammar)
            self._groups.move_to_end(group)
        return None if is_worn_out else kept.compiled

    def put(self, group: bytes, grammar: Grammar, compiled: CompiledGrammar) -> None:
        """Keep it."""
        of_group = self._groups.setdefault(group, OrderedDict())
        of_group[grammar] = _Kept(compiled)
        self._groups.move_to_end(group)
        if len(of_group) > MAX_KEPT_OF_GROUP:
            of_group.popitem(last=False)
        elif len(self) > MAX_KEPT:
            # Of several the one that was used least recently.
            most = max(self._groups, key=lambda it: len(self._groups[it]))
            self._drop(most, next(iter(self._groups[most])))

    def _drop(self, group: bytes, grammar: Grammar) -> None:
        of_group = self._groups[group]
        del of_group[grammar]
        if not of_group:
            del self._groups[group]
