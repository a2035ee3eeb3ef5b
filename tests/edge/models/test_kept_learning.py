"""What chats on several definitions of the same weights taught is kept apart."""

from __future__ import annotations

from pathlib import Path

from outrider.models.definitions import ModelSpec
from outrider.speculation.ngrams import keys
from services.edge.config import EdgeConfig
from services.edge.drafter.learnt_binding import learnt_binding
from services.edge.models.kept_learning import KeptLearning
from tests.edge.integration.region import small_vocabulary

GROUP = b"a group whose name lasts"
WORDS = small_vocabulary()
MINE = ModelSpec("mine", "file:/m.gguf", sha256="0" * 64)
TWIN = ModelSpec("twin", "file:/m.gguf", sha256="0" * 64)


def opened(folder: Path, spec: ModelSpec) -> KeptLearning:
    config = EdgeConfig(
        state_dir=folder, model_store=folder, cache_salt_key="a secret of the edges"
    )
    return KeptLearning(spec, config.model_settings(), WORDS, 2048, None)


def teach(learning: KeptLearning, context: int) -> None:
    """Replies in which one token always follows this context."""
    learning.admit(GROUP)
    statistics = learning.groups._ngrams.of(GROUP)
    for _ in range(8):
        statistics.learn(keys([context] * 4), 7)


async def test_two_definitions_of_the_same_weights_overwrite_nothing(tmp_path: Path) -> None:
    pair = [opened(tmp_path, spec) for spec in (MINE, TWIN)]
    for number, learning in enumerate(pair):
        learning.start()
        teach(learning, 10 + 10 * number)
    taught = [learning.groups.learnt_of(GROUP) for learning in pair]
    assert taught[0] != taught[1]
    for learning in pair:
        await learning.close()

    for spec, before in zip((MINE, TWIN), taught, strict=True):
        again = opened(tmp_path, spec)
        assert again.num_kept == 1
        assert list(again.groups.learnt_of(GROUP).tables) == list(before.tables)


def test_edges_and_drafters_of_each_definition_have_bindings_of_their_own() -> None:
    digest, weights = WORDS.digest, "0" * 64
    bindings = {
        learnt_binding(spec, digest, weights, draft=draft)
        for spec in (MINE, TWIN)
        for draft in ("", "small", "smaller")
    }
    assert len(bindings) == 6
    assert learnt_binding(MINE, digest, weights) != learnt_binding(MINE, digest, "1" * 64)
    assert learnt_binding(MINE, digest, weights) != learnt_binding(MINE, b"other", weights)
