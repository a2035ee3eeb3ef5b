"""Statistics of the chats on one loaded model: in memory while it is loaded, in files after
that."""

from __future__ import annotations

import asyncio
from itertools import islice

from outrider.models.definitions import ModelSpec
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary
from outrider.speculation.learnt_files import Copies, LearntKeeper
from outrider.speculation.shipped import shipped_calibrations, shipped_prior
from services.edge.drafter.learnt_binding import learnt_binding
from services.edge.drafter.link import DrafterLink
from services.edge.models.settings import ModelSettings
from services.edge.session.learning import EdgeLearning


class KeptLearning:
    """One model's, for each trust group by itself. Files are written at intervals and when the
    model is unloaded."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: ModelSettings,
        vocabulary: Vocabulary,
        max_context_tokens: int,
        drafter: DrafterLink | None,
    ) -> None:
        """Open with the saved statistics; blocks. `drafter`: the process that drafts for the
        model."""
        store = ModelStore(settings.store or default_root())
        self._keeper = LearntKeeper.open(
            settings.learnt_folder,
            learnt_binding(spec, vocabulary.digest, store.weights_of(spec)),
            vocabulary.size,
            settings.learnt,
        )
        self._save_interval_s = settings.learnt.save_interval_s
        self._is_kept = settings.learnt.keep
        self.groups = EdgeLearning(
            max_context_tokens,
            shipped_prior(vocabulary.tokens_digest),
            shipped_calibrations(vocabulary.tokens_digest),
            is_drafted_for=lambda: drafter is not None and drafter.is_usable,
            restore=self._keeper.kept.restore,
        )
        self._saving: asyncio.Task[None] | None = None

    @property
    def num_kept(self) -> int:
        """Number of groups with a kept copy."""
        return len(self._keeper.kept)

    def admit(self, group: bytes) -> None:
        """Mark the group's name as lasting, so that its statistics may be kept."""
        self._keeper.kept.admit(group)

    def start(self) -> None:
        """Begin to save. Called in the event loop."""
        if self._is_kept:
            self._saving = asyncio.create_task(
                self._keeper.run(self._take, self._save_interval_s), name="learnt"
            )

    async def close(self) -> None:
        """Save all unsaved statistics; chats no longer learn."""
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
            await self._keeper.save_now(self._take)

    async def _take(self) -> Copies:
        """A group at a time: chats wait meanwhile."""
        return list(islice(self._keeper.kept.changed(self.groups), 1))
