"""A loaded model: what the chats on it share."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from typing import TypeAlias

from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.mirrors.opening import open_mirrors
from outrider.models.definitions import ModelSpec, as_table, to_toml
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.static_prefixes import prefix_ids
from outrider.tls import Tls
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import load_backend
from outrider.tokenization.cut_proofs import rule_of
from outrider.tokenization.encoder import CachingEncoder
from outrider.tokenization.pool.config import automatic_processes
from outrider.tokenization.pool.metrics import TokenizationMetrics
from outrider.tokenization.pool.pool import PoolPolicy, TokenizationPool
from outrider.tokenization.pool.processes import ProcessPool
from outrider.tokenization.rewriting import Rewriter
from outrider.tokenization.segment_cache import CachePolicy
from outrider.usable_cores import usable_cores
from services.edge.drafter.link import DrafterLink
from services.edge.drafter.metrics import DrafterMetrics
from services.edge.drafter.settings import NO_DRAFT_MODEL
from services.edge.models.kept_learning import KeptLearning
from services.edge.models.keys import EdgeModel, ModelKey
from services.edge.models.model_limits import ModelLimits
from services.edge.models.settings import ModelSettings
from services.edge.models.template_control import TemplateControl
from services.edge.models.tool_calling import ToolCalling
from services.edge.session.learning import EdgeLearning
from services.edge.session.machine import SessionPolicy
from services.edge.session.reply import ReplyTools
from services.edge.session.typeahead_plan import TypeaheadPolicy
from services.edge.telemetry.labels import ModelLabels
from services.edge.wire.region import RegionCodec

LoadVocabulary: TypeAlias = Callable[[ModelSpec], tuple[Vocabulary, FallbackBackend]]
"""A model's vocabulary, and what encodes with it. Blocks; raises OutriderError."""


def vocabularies_of(settings: ModelSettings, tls: Tls) -> LoadVocabulary:
    """Loads from the model store, which asks the mirrors; `tls` is what those of the mesh are
    shown. Raises ConfigError."""
    mirrors = open_mirrors(settings.mirrors, tls)

    def load(spec: ModelSpec) -> tuple[Vocabulary, FallbackBackend]:
        store = ModelStore(settings.store or default_root(), mirrors=mirrors)
        vocabulary = load_vocabulary(spec, store)
        return vocabulary, load_backend(store, vocabulary, settings.tokenization.backend)

    return load


@dataclass(frozen=True)
class ServedModel:
    """One definition of a model."""

    key: ModelKey
    limits: ModelLimits
    tool_calling: ToolCalling
    template_control: TemplateControl
    policy: SessionPolicy
    tools: ReplyTools
    coder: TokenCoder
    vocabulary: Vocabulary
    encoder: CachingEncoder
    tokenization: TokenizationPool
    typeahead: TypeaheadPolicy
    drafter: DrafterLink
    region_codec: RegionCodec
    has_drafter: bool
    """Whether a process drafts for it."""
    drafter_files: tuple[DrafterFile, ...]
    learning: KeptLearning
    """Statistics of its chats, separately for each trust group."""

    @property
    def vocabulary_digest(self) -> bytes:
        """Digest of the vocabulary, which regions must share."""
        return self.policy.vocabulary_digest

    def start(self) -> None:
        """Start the drafter and the saving of statistics. Call it in the event loop."""
        self.learning.start()
        if self.has_drafter:
            self.drafter.start()

    async def close(self) -> None:
        """Release processes, threads and files, each even if releasing others fails; no chat may
        use the model any more."""
        async with AsyncExitStack() as held:  # the last one first
            for file in self.drafter_files:
                held.callback(file.close)
            held.push_async_callback(asyncio.to_thread, self.tokenization.join)
            held.callback(self.tokenization.close)
            held.push_async_callback(self.learning.close)
            held.push_async_callback(self.drafter.stop)


class DrafterFile:
    """A file that a drafter reads whenever it starts. In memory: an edge may have no folder."""

    def __init__(self, text: str) -> None:
        self._fd = os.memfd_create("drafter")
        with open(self._fd, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)

    @property
    def path(self) -> str:
        """Its path, valid as long as this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Release the file's memory."""
        os.close(self._fd)


def definitions_of(model: EdgeModel) -> str:
    """The definitions of a model and its draft, as text: the files they are from may have changed
    by the time that a drafter starts."""
    # A definition names a draft only if that is defined too, and the drafter is told its own.
    specs = [replace(spec, draft="") for spec in (model.draft_spec, model.spec) if spec]
    return to_toml({spec.name: as_table(spec) for spec in specs})


def load_model(
    model: EdgeModel,
    settings: ModelSettings,
    load: LoadVocabulary,
    labels: ModelLabels,
    counted: TokenizationMetrics,
) -> ServedModel:
    """Load a model. Blocks for a second or more: call it in a thread. Raises OutriderError."""
    vocabulary, backend = load(model.spec)
    digest, max_context_tokens = vocabulary.digest, settings.context_tokens(model.spec)
    coder = TokenCoder(digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    name, has_drafter = model.spec.name, model.draft != NO_DRAFT_MODEL
    encoder = CachingEncoder(
        vocabulary,
        backend,
        CachePolicy(max_bytes=settings.tokenization.cache_bytes),
        cuts=rule_of(vocabulary.tokenizer_json),
    )
    with ExitStack() as made:
        definitions = DrafterFile(definitions_of(model))
        made.callback(definitions.close)
        static = [it for it in settings.prefixes if has_drafter and it.model in ("", name)]
        prefixes = DrafterFile(json.dumps([prefix_ids(it, vocabulary) for it in static]))
        made.callback(prefixes.close)
        drafter = DrafterLink(
            settings.drafter_of(name, model.draft, definitions.path, prefixes.path),
            vocabulary.size,
            DrafterMetrics(labels, name),
            prefix_tenants=[it.tenants for it in static],
        )
        used_drafter = drafter if has_drafter else None
        learning = KeptLearning(model.spec, settings, vocabulary, max_context_tokens, used_drafter)
        tokenization = _tokenization_pool(
            settings, vocabulary, encoder, max_context_tokens, counted
        )
        made.pop_all()  # the model's from here on
    return ServedModel(
        key=model.key,
        limits=ModelLimits(
            name,
            vocabulary.size,
            max_context_tokens,
            suggested=model.spec.sampling or vocabulary.facts.sampling,
        ),
        tool_calling=ToolCalling.of(vocabulary, model.spec.tool_parser),
        template_control=TemplateControl.of(vocabulary),
        policy=SessionPolicy(
            vocabulary_digest=digest,
            max_context_tokens=max_context_tokens,
            request_timeout_s=settings.request_timeout_s,
            bail_out_s=settings.tokenization.bail_out_ms / 1000,
            reply=settings.reply,
            reopen=settings.reopen,
        ),
        tools=reply_tools(vocabulary, learning.groups, used_drafter, admit=learning.admit),
        coder=coder,
        region_codec=RegionCodec(),
        vocabulary=vocabulary,
        encoder=encoder,
        tokenization=tokenization,
        typeahead=settings.typeahead(model.spec),
        drafter=drafter,
        has_drafter=has_drafter,
        drafter_files=(definitions, prefixes),
        learning=learning,
    )


def _tokenization_pool(
    settings: ModelSettings,
    vocabulary: Vocabulary,
    encoder: CachingEncoder,
    max_context_tokens: int,
    counted: TokenizationMetrics,
) -> TokenizationPool:
    policy = PoolPolicy(
        num_workers=settings.tokenization.threads,
        max_queued=settings.tokenization.max_queued,
        max_tokens=max_context_tokens - 1,
    )
    return TokenizationPool(
        encoder,
        policy,
        rewriter=Rewriter(settings.rewriting),
        record=counted.record,
        shortened=counted.shortened,
        overflow=_overflow_pool(settings, vocabulary, encoder.backend),
    )


def _overflow_pool(
    settings: ModelSettings, vocabulary: Vocabulary, backend: FallbackBackend
) -> ProcessPool | None:
    num_processes = settings.tokenization.processes
    if num_processes is None:
        cores = usable_cores() // settings.edge_processes
        num_processes = automatic_processes(cores, is_fast=backend.is_fast)
    if not num_processes:
        return None
    return ProcessPool(
        vocabulary,
        backend.name,
        num_processes=num_processes,
        cache_bytes=settings.tokenization.cache_bytes,
    )


def reply_tools(
    vocabulary: Vocabulary,
    learning: EdgeLearning,
    drafter: DrafterLink | None = None,
    admit: Callable[[bytes], None] = lambda group: None,
) -> ReplyTools:
    """Everything that replies in `vocabulary` share. What chats learn about the region is common to
    all; what they learn from texts stays within their trust group, in `learning`. `admit` is called
    with groups whose names last."""
    stop_ids = vocabulary.stop_ids

    def new_reply(params: SamplingParams) -> ReplyText:
        detokenizer = vocabulary.detokenizer(keep_special=params.special_tokens)
        return ReplyText(params, stop_ids, detokenizer)

    return ReplyTools(
        new_reply=new_reply,
        new_drafter=learning.new_drafter,
        token_bytes=vocabulary.text_bytes,
        all_bytes=vocabulary.token_bytes,
        strips_space=vocabulary.strips_space,
        stop_ids=stop_ids,
        has_drafter=drafter is not None,
        averages=learning.averages,
        admit=admit,
        first_guess_s=drafter.first_draft_s if drafter is not None else lambda num_tokens: None,
    )
