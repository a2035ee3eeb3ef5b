"""The model that a replica serves: its vocabulary, its engine and its identity."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.engines.base import Engine, EngineInfo
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine, warm_up
from outrider.engines.load_stage import LoadStage, ReportStage, ignore_stage
from outrider.engines.turn.base import TurnEngine
from outrider.engines.turn.factory import open_turn_engine
from outrider.errors import ConfigError, EngineError
from outrider.mirrors.opening import open_mirrors
from outrider.model_identity import model_identity, short_form
from outrider.models.catalog import ModelSpec, lookup
from outrider.models.disk.fetch import ReportProgress, ignore_progress
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import Reply, reply_end
from outrider.tls import PLAINTEXT, Tls
from services.inference.config import InferenceConfig
from services.inference.static_prefixes.prefixes import StaticPrefix, rendered

if TYPE_CHECKING:
    from services.inference.grammars.token_table import TokenTable

_PROCESS_IDENTITY_BYTES: Final = 32
"""Random bytes, which no other process draws again."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model as a replica serves it."""

    name: str
    engine: Engine
    coder: TokenCoder
    vocabulary_digest: bytes
    new_reply: Callable[[SamplingParams], Reply]
    identity: bytes
    """Model identity (outrider.model_identity)."""
    tokens_digest: bytes = b""
    """Digest of the vocabulary's ids without its other properties; shipped tables belong to it."""
    token_table: TokenTable | None = None
    """For grammars; without it, requests with one are refused."""
    prefixes: tuple[StaticPrefix, ...] = ()
    """Static prefixes that the operator registered for this model."""


@dataclass(frozen=True, slots=True)
class TurnModel:
    """A model as a replica with a turn engine serves it."""

    name: str
    engine: TurnEngine
    coder: TokenCoder
    vocabulary_size: int
    vocabulary_digest: bytes
    tokens_digest: bytes
    new_reply: Callable[[SamplingParams], Reply]
    end_ids: frozenset[int]
    """Ids with which the model ends a reply."""
    identity: bytes
    """Of this process alone: such engines promise no bits."""


async def load_turn_model(
    config: InferenceConfig,
    tls: Tls = PLAINTEXT,
    report: ReportProgress = ignore_progress,
    report_stage: ReportStage = ignore_stage,
) -> TurnModel:
    """Load the vocabulary, and open the turn engine; cancelling it gives up. Raises what
    load_model does, and UnavailableError if a server cannot be reached."""
    spec = lookup(config.model)
    mirrors = open_mirrors(config.mirrors, tls)
    store = ModelStore(config.model_store or default_root(), mirrors=mirrors)
    vocabulary = await asyncio.to_thread(load_vocabulary, spec, store, report)
    if config.prefixes:
        raise ConfigError(
            f"the engine {config.engine} keeps no static prefixes; leave `prefixes` out"
        )
    report_stage(LoadStage.TURN_ENGINE)
    engine = await open_turn_engine(config.engine_config(vocabulary.size, spec), vocabulary)
    info = engine.info
    if 0 < info.vocabulary_size < vocabulary.size:
        await engine.close()
        raise EngineError(
            f"the engine scores {info.vocabulary_size} ids, the vocabulary of {spec.name} has "
            f"{vocabulary.size}; their files do not belong together"
        )
    identity = secrets.token_bytes(_PROCESS_IDENTITY_BYTES)
    _log.info(
        "turn_engine",
        identity=short_form(identity),
        engine=info.name,
        version=info.version,
        max_sessions=info.max_sessions,
        max_context_tokens=info.max_context_tokens,
        abilities=sorted(info.abilities),
    )
    return TurnModel(
        spec.name,
        engine,
        TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest)),
        vocabulary.size,
        vocabulary.digest,
        vocabulary.tokens_digest,
        replies_in(vocabulary),
        frozenset(vocabulary.stop_ids),
        identity,
    )


def load_model(
    config: InferenceConfig,
    tls: Tls = PLAINTEXT,
    report: ReportProgress = ignore_progress,
    report_stage: ReportStage = ignore_stage,
) -> LoadedModel:
    """Load vocabulary and engine; blocks for seconds, longer if the model has to be fetched.

    `tls`: certificates for mirrors of the mesh. `report` is called with the progress of a fetch,
    `report_stage` with each stage after it. Raises UnknownModelError, ModelStoreError, EngineError
    and ConfigError, and the errors that these two raise.
    """
    spec = lookup(config.model)
    mirrors = open_mirrors(config.mirrors, tls)
    store = ModelStore(config.model_store or default_root(), mirrors=mirrors)
    vocabulary = load_vocabulary(spec, store, report)
    # From here on the weights are known, whether the definition names their digest or not.
    spec = replace(spec, sha256=spec.sha256 or store.recorded(spec.source))
    how = config.engine_config(vocabulary.size, spec)
    prefixes = rendered(config.prefixes, spec.name, vocabulary)
    # Beside the engine: most of its work is outside Python's lock.
    with ThreadPoolExecutor(1, "token-table") as beside:
        table = beside.submit(_token_table, vocabulary) if _scores_all_ids(how) else None
        engine = _load_engine(how, config.warm_up_rows, report_stage)
    if engine.info.vocabulary_size != vocabulary.size:
        engine.close()
        raise EngineError(
            f"the engine scores {engine.info.vocabulary_size} ids, the vocabulary of "
            f"{spec.name} has {vocabulary.size}; their files do not belong together"
        )
    digest = vocabulary.digest
    coder = TokenCoder(digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    return LoadedModel(
        spec.name,
        engine,
        coder,
        digest,
        replies_in(vocabulary),
        _identity(spec, digest, engine.info),
        vocabulary.tokens_digest,
        table.result() if table is not None else None,
        prefixes,
    )


def replies_in(vocabulary: Vocabulary) -> Callable[[SamplingParams], Reply]:
    """A factory of detectors of the end of a reply in this vocabulary."""

    def new_reply(params: SamplingParams) -> Reply:
        detokenizer = partial(vocabulary.detokenizer, keep_special=params.special_tokens)
        return reply_end(params, vocabulary.stop_ids, detokenizer)

    return new_reply


def _scores_all_ids(how: EngineConfig) -> bool:
    """Whether the engine scores every id, as following a grammar requires."""
    return how.engine != "fake" or not how.fake.num_candidates


def _token_table(vocabulary: Vocabulary) -> TokenTable:
    # Imported here: images for engines that follow no grammars do without the package.
    from services.inference.grammars.token_table import TokenTable

    return TokenTable(vocabulary)


def _identity(spec: ModelSpec, vocabulary_digest: bytes, info: EngineInfo) -> bytes:
    """Model identity of this replica; one of this process only if its engine has no fingerprint."""
    if info.fingerprint:
        identity = model_identity(
            weights_sha256=spec.sha256,
            vocabulary_digest=vocabulary_digest,
            engine=info.name,
            precision=info.precision,
            exact=info.exact,
            fingerprint=info.fingerprint,
        )
    else:
        identity = secrets.token_bytes(_PROCESS_IDENTITY_BYTES)
    # In full nowhere else: by these lines an operator finds out what differs between two replicas.
    _log.info(
        "model_identity",
        identity=short_form(identity),
        weights=spec.sha256,
        vocabulary=vocabulary_digest.hex(),
        engine=info.name,
        precision=info.precision,
        exact=info.exact,
        fingerprint=info.fingerprint.hex() or "none: no other process takes over its sessions",
    )
    return identity


def _load_engine(how: EngineConfig, warm_up_rows: int, report: ReportStage) -> Engine:
    engine = create_engine(how, report)
    info = engine.info
    _log.info(
        "kv_pool",
        num_blocks=info.num_blocks,
        num_tokens=info.num_blocks * info.block_tokens,
        num_bytes=info.num_blocks * info.block_bytes,
        reason=info.pool_reason,
    )
    try:
        report(LoadStage.WARM_UP)
        warm_up(engine, warm_up_rows)
    except BaseException:
        engine.close()  # some have threads and memory outside Python
        raise
    return engine
