"""Settings and limits of a drafter (pure)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from outrider.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, between
from outrider.mirrors.config import MirrorConfig
from outrider.speculation.learnt import LearntConfig
from outrider.tls.config import TlsConfig

NO_DRAFT_MODEL: Final = "none"
"""The value of `edge.drafter.model` with which no drafter is started."""
LACKS_MEMORY: Final = 75
"""Exit status of a drafter whose model does not fit into the memory that is free now (EX_TEMPFAIL
of sysexits.h)."""


@dataclass(frozen=True, slots=True)
class DrafterLimits:
    """How many sessions, how far ahead, and how much in one call of the model."""

    max_sessions: int = 64
    max_lead: int = 32
    """Most drafts ahead of the final tokens."""
    min_survival: float = 0.2
    """Drafting stops where the drafts so far are less likely than this to be all right."""
    first_tokens: int = 4
    """For so many tokens at a reply's start `first_survival` applies instead of `min_survival`."""
    first_survival: float = 0.01
    """Least survival of a reply's first tokens; as DraftLimits.first_survival."""
    sure: float = 0.9
    """Behind the first tokens, a copy of the text at least this likely is taken without asking the
    model."""
    branch_tokens: int = 4
    """Drafts behind an alternative token."""
    min_branch: float = 0.2
    """Least probability that an alternative will be needed: it saves a step, and costs several."""
    min_cheap_branch: float = 0.05
    """The same where its rows are among the `cheap_rows`."""
    cheap_rows: int = 4
    """Calls of up to this many rows take hardly longer than calls of one, as the time goes into
    reading the weights: rows that chains leave unused go to alternatives."""
    max_slices: int = 16
    """Most sessions in one call of the model."""
    catch_up_tokens: int = 16
    """A session whose KV is missing for more tokens than this is computed in chunks, like a
    prompt."""
    chunk_tokens: int = 32
    """Prompt tokens in a call that other sessions wait for."""
    idle_chunk_tokens: int = 128
    """Prompt tokens in a call that no other session waits for."""
    update_tokens: int = 4
    """Number of new drafts after which the edge is sent an update; the first tokens of a reply are
    each sent at once."""
    update_interval_s: float = 0.004
    """Fewer new drafts are sent after this time, or when no more follow."""
    max_kept: int = 64
    """Number of ended replies whose KV is kept for the next turn of their chats, as long as the
    blocks are not needed otherwise."""
    evict_idle_s: float = 5.0
    """A session without a commit for this long may lose its KV blocks to another."""

    def least(self, number: int) -> float:
        """Least survival of a draft for the reply's token `number`."""
        return self.first_survival if number < self.first_tokens else self.min_survival


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """The draft model and its process: table `[edge.drafter]`."""

    model: str = ""
    """Draft model: the path of a GGUF file with the model's vocabulary, a model's name, "none" to
    draft only copies of the text, or "" for the draft of the model's definition; without one, the
    draft shipped for the model."""
    threads: PositiveInt = 1
    """Threads of the process."""
    niceness: NonNegativeInt = 10
    """Niceness of the process: serving comes first."""
    max_wait_share: Annotated[float, between(0, 1)] = 0.5
    """The model pauses, but for the first tokens of replies, while the process waits for a core
    for more than this share of the time that it could run: it would slow down what the cores are
    needed for. 1: it never pauses."""
    kv_bytes: PositiveInt = 64 << 20
    """Size of its KV pool; memory is touched only as it fills."""
    max_sessions: PositiveInt = 64
    """Chats that it drafts for at once; others get copies of their text only."""
    ready_wait_s: NonNegativeFloat = 10.0
    """How long an edge that starts counts as not ready, in seconds, while its drafter loads its
    model: without drafts, replies are shown only once a region has decided. After that it is ready
    without them."""


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """Settings that the drafter's process gets on its command line."""

    model: str
    """The target model's name."""
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    """The draft model and the process."""
    model_store: str = ""
    """The store's folder; empty: the machine's."""
    mirrors: MirrorConfig = field(default_factory=MirrorConfig)
    """Mirrors for models that are not in the store, asked before their own source."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """Credentials for mirrors of the mesh."""
    log_level: str = "info"
    limits: DrafterLimits = field(default_factory=DrafterLimits)
    learnt: LearntConfig = field(default_factory=lambda: LearntConfig(keep=False))
    """How statistics of replies are kept."""
    learnt_folder: str = ""
    """Folder of the kept statistics; required if any are kept."""
    definitions_file: str = ""
    """A TOML file that defines the model and its draft; empty: the machine's files do."""
    prefixes_file: str = ""
    """A JSON file with the token ids of static prefixes, a list of lists; empty: no prefixes."""

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> DrafterSettings:
        """Reads `to_json`'s text."""
        values = json.loads(text)
        kinds = {"drafter": DrafterConfig, "limits": DrafterLimits, "learnt": LearntConfig}
        tables: dict[str, object] = {name: kind(**values[name]) for name, kind in kinds.items()}
        tables["mirrors"] = _mirrors(**values["mirrors"])
        tables["tls"] = _tls(**values["tls"])
        return cls(**values | tables)


def _mirrors(sources: Sequence[str], **values: Any) -> MirrorConfig:
    return MirrorConfig(tuple(sources), **values)


def _tls(trust_domain: str, *, allow_plaintext: bool, **paths: str | None) -> TlsConfig:
    given = {name: Path(path) if path else None for name, path in paths.items()}
    return TlsConfig(**given, trust_domain=trust_domain, allow_plaintext=allow_plaintext)
