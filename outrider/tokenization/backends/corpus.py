# ruff: noqa: RUF001  (look-alike characters are the point)
"""Texts on which a backend must equal the reference before it is used."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import outrider
from outrider.models.vocabulary import Vocabulary

_CHUNK_POINTS: Final = 64
_MAX_SOURCE_CHARS: Final = 200_000

LANGUAGES: Final = (
    "The ferry left at 7:45, twelve minutes late; nobody on the pier seemed to mind.",
    "Der Fährmann grüßte höflich, überquerte den Fluß und zählte dreiundzwanzig Gänse.",
    "L'été dernier, j'ai goûté des crêpes près de l'église ; c'était délicieux, n'est-ce pas ?",
    "El niño soñó que volaba sobre la montaña… ¿quién no lo ha soñado alguna vez?",
    "Łódka przepłynęła cieśninę, zanim żeglarz zdążył otworzyć mapę.",
    "Корабль вышел из гавани на рассвете, и чайки кружили над мачтами.",
    "Το πλοίο έφυγε νωρίς το πρωί και η θάλασσα ήταν ήρεμη.",
    "غادرت السفينة الميناء مع الفجر، وكان البحر هادئًا.",
    "הספינה עזבה את הנמל עם שחר, והים היה שקט.",
    "जहाज़ सुबह-सुबह बंदरगाह से निकला और समुद्र शांत था।",
    "船在黎明时离开了港口，海面十分平静。他们带了三十二箱茶叶！",
    "船は夜明けに港を出た。海はとても静かで、カモメが飛んでいた。",
    "배는 새벽에 항구를 떠났고 바다는 잔잔했다.",
    "เรือออกจากท่าในยามเช้าและทะเลก็สงบ",
    "Con tàu rời bến lúc bình minh, mặt biển rất yên tĩnh.",
    "Gemi şafakta limandan ayrıldı; ışıklar İstanbul'un üstünde sönüyordu.",
)
ATOMS: Final = (
    *("", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n ", "\x0b", "\x0c", "\x85"),
    *("\u00a0", "\u1680", "\u180e", "\u2003", "\u2028", "\u2029", "\u200b", "\u3000", "\ufeff"),
    *("a", "Z", "é", "e\u0301", "ß", "中", "文", "か", "ㅎ", "\u1112\u1161\u11ab", "ﬁ", "ǅ", "ʼn"),
    *("'s", "'S", "'t", "'re", "'VE", "'ll", "'d", "’s", "''", "'", '"', "don't", "I'M"),
    *("0", "7", "12", "123", "1234", "12345678901", "٣", "५", "²", "Ⅷ", "½", "1's", "a1b2", "3.14"),
    *(".", "...", "!?", "--", "/*", "*/", "</", "{}", "#", "@", "\\", "_", "__init__", "$", "€"),
    *("🙂", "👩‍👩‍👧", "👍🏽", "🇪🇺", "1️⃣", "\U0001f3f4", "\U00040000", "\U0010ffff", "\ue000"),
    *("\x00", "\x01", "\x04", "\x06", "\x1b[0m", "\x7f", "\xad", "\u200d", "\u0301", "\u0f00"),
    *("the", " The", "world", " straße", "naïve", "HTTP", "camelCase", "snake_case", "x=1"),
    *("a" * 300, " " * 300, "\n" * 300, "9" * 300, "。" * 100, "ab" * 200, "-" * 300, "🙂" * 50),
)


def adversarial_texts(vocabulary: Vocabulary, *, num_mixtures: int = 3000) -> Iterator[str]:
    """Texts on which tokenizers tend to differ: every atom, names of added tokens whole and cut,
    and seeded mixtures of them."""
    atoms = [*ATOMS, *_token_names(vocabulary)]
    yield from atoms
    rng = random.Random(20)
    for _ in range(num_mixtures):
        yield "".join(rng.choices(atoms, k=rng.randint(2, 12)))


def _token_names(vocabulary: Vocabulary) -> Iterator[str]:
    for token in json.loads(vocabulary.tokenizer_json)["added_tokens"]:
        name = token["content"]
        yield from (name, name[:-1], name[1:], f"a{name} b")


def natural_texts() -> Iterator[str]:
    """Sentences in many languages, singly and together, and source code of this package."""
    yield from LANGUAGES
    yield "\n".join(LANGUAGES)
    yield " ".join(LANGUAGES) * 4
    left = _MAX_SOURCE_CHARS
    for path in sorted(Path(next(iter(outrider.__path__))).rglob("*.py")):
        if left <= 0:
            return
        text = path.read_text("utf-8")[:left]
        left -= len(text)
        yield text


def code_point_texts() -> Iterator[str]:
    """The planes with letters whole, the ideographs' and the empty ones sampled; each character
    between letters, before a digit, doubled, and after white space."""
    points = [p for p in range(0x20000) if not 0xD800 <= p < 0xE000]
    points += range(0x20000, 0x40000, 16)
    points += range(0x40000, 0x110000, 256)
    points += range(0xE0000, 0xE0200)
    for start in range(0, len(points), _CHUNK_POINTS):
        yield "".join(map(in_context, points[start : start + _CHUNK_POINTS]))


def in_context(point: int) -> str:
    """One code point in contexts in which pre-tokenizers could distinguish it from others."""
    char = chr(point)
    return f"a{char}b {char}1 {char}{char} \n{char}"
