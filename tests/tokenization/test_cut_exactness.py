# ruff: noqa: RUF001  (look-alike characters are the point)
"""Ids of parts joined are the ids of the whole, for every vocabulary at hand."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.cut_proofs import prove
from outrider.tokenization.cuts import CutRule, Cutter
from tests.models import corpus
from tests.tokenization.vocabularies import OTHERS, tokenizer_json

pytestmark = pytest.mark.model

ATOMS = [
    *(
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\u0085",
        "\x1c",
        "\x1f",
    ),
    *("a", "Z", "e\u0301", "\u0301", "ſ", "é", "1", "12", "345", "٣", "²", "½", "Ⅳ", "_", "\u2581"),
    *("'s", "'S", "'ſ", "'ll", "'", "’s", ".", "...", "!?", "-", "/", "<", ">", "|", "#"),
    *(
        "你",
        "好",
        "，",
        "。",
        "か",
        "が",
        "か\u3099",
        "ガ",
        "한",
        "\u1112\u1161\u11ab",
        "й",
        "α",
        "ش",
    ),
    *(
        "🙂",
        "👩‍👩‍👧",
        "🇪🇺",
        "\ufe0f",
        "\u200d",
        "\u200b",
        "\ufeff",
        "\u212a",
        "\u037e",
        "\x04",
        "\x00",
    ),
    *("a ", "é\n", "й ", "1 ", "x1", "好。", "が、", "word ", "end\n", "tab\t"),
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<bos>", "<eos>", "<|im_", "end|>", "word"),
]
HOSTILE = st.one_of(
    st.lists(st.sampled_from(ATOMS), min_size=8, max_size=40).map("".join), st.text(max_size=40)
)


class Reference:
    """A Hugging Face tokenizer and the rule proven for it."""

    def __init__(self, tokenizer: Tokenizer, rule: CutRule, *, plain: bool) -> None:
        self._tokenizer, self.rule, self._plain = tokenizer, rule, plain

    def ids(self, texts: Iterable[str]) -> list[int]:
        """Ids of each text, joined."""
        self._tokenizer.encode_special_tokens = self._plain
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [i for encoding in found for i in encoding.ids]


@pytest.fixture(scope="module", params=["smollm2", *OTHERS])
def loaded(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> tuple[Tokenizer, CutRule]:
    own = request.param == "smollm2"
    spec = vocabulary.tokenizer_json if own else tokenizer_json(request.param)
    return Tokenizer.from_str(spec), prove(spec)


@pytest.fixture(params=[False, True], ids=["specials", "plain"])
def reference(request: pytest.FixtureRequest, loaded: tuple[Tokenizer, CutRule]) -> Reference:
    return Reference(*loaded, plain=request.param)


def cut(rule: CutRule, pieces: Sequence[str], target_chars: int) -> list[str]:
    """The parts of a text that arrives in `pieces`."""
    cutter = Cutter(rule, target_chars=target_chars, max_chars=1 << 30)
    parts = [part for piece in pieces for part in cutter.feed(piece)]
    return [*parts, *cutter.finish()]


def pieces_of(text: str, rng: random.Random, longest: int) -> list[str]:
    """`text` as it may arrive."""
    pieces = []
    while text:
        length = rng.randint(1, longest)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


def long_text(rng: random.Random, num_slices: int) -> str:
    """All languages, code, white space, and emoji, in lines and paragraphs."""
    ends = (" ", "\n", "\n\n", "\t", "\r\n", "")
    return "".join(rng.choice(corpus.ORDINARY) + rng.choice(ends) for _ in range(num_slices))


def test_hostile_strings_cut_everywhere(reference: Reference) -> None:
    cuts = 0

    @settings(max_examples=100)
    @given(HOSTILE, st.integers(1, 5), st.randoms(use_true_random=False))
    def check(text: str, target_chars: int, rng: random.Random) -> None:
        nonlocal cuts
        parts = cut(reference.rule, pieces_of(text, rng, 9), target_chars)
        assert "".join(parts) == text
        assert reference.ids(parts) == reference.ids([text])
        cuts += len(parts) - 1

    check()
    assert cuts > 100


@pytest.mark.parametrize("target_chars", [1, 50, 4096])
def test_long_texts_of_many_languages(reference: Reference, target_chars: int) -> None:
    rng = random.Random(target_chars)
    text = long_text(rng, 1500)
    parts = cut(reference.rule, pieces_of(text, rng, 700), target_chars)
    assert reference.ids(parts) == reference.ids([text])
    assert len(parts) > len(text) / (target_chars + 200)


def test_texts_of_one_language_are_cut(reference: Reference) -> None:
    for line in corpus.LANGUAGES:
        text = f"{line}\n" * 30
        parts = cut(reference.rule, [text], 40)
        assert reference.ids(parts) == reference.ids([text]), line
        assert len(parts) > 4, line


def test_special_tokens_of_the_vocabulary_survive(
    reference: Reference, loaded: tuple[Tokenizer, CutRule]
) -> None:
    names = [token.content for token in loaded[0].get_added_tokens_decoder().values()]
    rng = random.Random(1)
    text = "".join(rng.choice([*names, "a1 b", " x\n", *ATOMS]) for _ in range(2000))
    parts = cut(reference.rule, pieces_of(text, rng, 30), 1)
    assert reference.ids(parts) == reference.ids([text])
