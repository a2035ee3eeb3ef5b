"""How the models of an edge are loaded, and what chats with any of them have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from outrider.load_table import LoadLimits
from outrider.mirrors.config import MirrorConfig
from outrider.models.definitions import ModelSpec
from outrider.speculation.learnt import LearntConfig
from outrider.static_prefixes import StaticPrefixConfig
from outrider.tokenization.pool.config import TokenizationConfig
from outrider.tokenization.rewriting import RewritingPolicy
from services.edge.drafter.settings import DrafterSettings
from services.edge.session.reopening import ReopenPolicy
from services.edge.session.reply import ReplyPolicy
from services.edge.session.typeahead_plan import TypeaheadPolicy

DEFAULT_CONTEXT_TOKENS: Final = 8192
"""Context of a model whose definition does not give one. An edge does not read weights, and the
memory of a chat's ids and their copies is proportional to this."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings for the models of one edge."""

    store: Path | None
    """Folder of the model store that vocabularies are read from; None: the machine's default
    store."""
    mirrors: MirrorConfig
    max_loaded: int
    """Models loaded at a time."""
    loading: LoadLimits
    max_context_tokens: int
    """Limit on the context of every model; 0: as in its definition."""
    tokenization: TokenizationConfig
    edge_processes: int
    """Processes of the edge, which share its cores."""
    rewriting: RewritingPolicy
    prefixes: tuple[StaticPrefixConfig, ...]
    drafter: DrafterSettings
    """Settings of every drafter, without its model, draft and files."""
    learnt: LearntConfig
    learnt_folder: Path
    request_timeout_s: float
    reply: ReplyPolicy
    reopen: ReopenPolicy
    min_prefill_tokens: int
    """Least new tokens of a prompt being typed that a region is asked to prefill; 0: no prefill."""

    def context_tokens(self, spec: ModelSpec) -> int:
        """Tokens of prompt and reply together, in a chat with this model."""
        limits = [limit for limit in (self.max_context_tokens, spec.max_context_tokens) if limit]
        return min(limits, default=DEFAULT_CONTEXT_TOKENS)

    def typeahead(self, spec: ModelSpec) -> TypeaheadPolicy:
        """When prompts for this model are computed while they are typed."""
        return TypeaheadPolicy(
            min_new_tokens=self.min_prefill_tokens,
            max_context_tokens=self.context_tokens(spec),
            is_on=bool(self.min_prefill_tokens),
        )

    def drafter_of(
        self, model: str, draft: str, definitions_file: str = "", prefixes_file: str = ""
    ) -> DrafterSettings:
        """Settings of a drafter for replies of `model` that uses the draft model `draft`
        (DrafterConfig.model); the files are those of DrafterSettings."""
        return replace(
            self.drafter,
            model=model,
            drafter=replace(self.drafter.drafter, model=draft),
            definitions_file=definitions_file,
            prefixes_file=prefixes_file,
        )
