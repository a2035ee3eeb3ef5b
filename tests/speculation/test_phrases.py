"""What replies of one trust group teach each other, and those of two groups do not."""

from __future__ import annotations

from outrider.speculation.ngrams import NgramPrior, keys, pack
from outrider.speculation.phrases import PhraseBooks
from outrider.speculation.suffix import Guess, SuffixDrafter

REPLY = list(range(100, 140))


def drafter(books: PhraseBooks, salt: bytes, prompt: list[int]) -> SuffixDrafter:
    made = SuffixDrafter(phrases=books.of(salt), num_prompt=len(prompt))
    made.extend(prompt)
    return made


def answer(books: PhraseBooks, salt: bytes, times: int = 8) -> None:
    for prompt in range(times):
        one = drafter(books, salt, [prompt])
        one.extend(REPLY)
        one.study()


def test_a_reply_is_guessed_from_another_ones() -> None:
    books = PhraseBooks()
    answer(books, b"a")
    later = drafter(books, b"a", [50])
    assert later.draft_after((), 4) == Guess()
    later.extend(REPLY[:2])
    assert later.draft_after((), 4).ids == tuple(REPLY[2:6])


def test_nothing_passes_between_salts() -> None:
    """Neither text nor rates: another tenant's drafts are what they would be in an empty house."""
    busy, empty = PhraseBooks(), PhraseBooks()
    answer(busy, b"a")
    for books in (busy, empty):
        answer(books, b"b", times=2)
    for count in range(len(REPLY)):
        guesses = []
        for books in (busy, empty):
            other = drafter(books, b"b", [50])
            other.extend(REPLY[:count])
            guesses.append(other.draft_after((), 8))
        assert guesses[0] == guesses[1]


def test_a_chain_ends_where_it_is_less_likely_than_asked_for() -> None:
    books = PhraseBooks()
    answer(books, b"g")
    later = drafter(books, b"g", [50])
    later.extend(REPLY[:3])
    whole = later.draft_after((), 8)
    cut = later.draft_after((), 8, least=whole.survival[4] + 1e-9)
    assert 0 < len(cut.ids) <= 4 < len(whole.ids) == 8
    assert cut.ids == whole.ids[: len(cut.ids)]


def test_prompts_are_not_learned() -> None:
    books = PhraseBooks()
    drafter(books, b"g", [*REPLY, 1])
    later = drafter(books, b"g", [50])
    later.extend(REPLY[:3])
    assert later.draft_after((), 4) == Guess()


def test_the_group_not_asked_for_longest_is_forgotten() -> None:
    books = PhraseBooks(max_books=2)
    first, second = books.of(b"1"), books.of(b"2")
    assert books.of(b"1") is first
    books.of(b"3")
    assert books.of(b"1") is first
    assert books.of(b"2") is not second
    assert len(books) == 2


def test_however_many_groups_there_are_their_memory_is_bounded() -> None:
    books = PhraseBooks(max_entries=1000)
    used = list[SuffixDrafter]()
    for group in range(50):
        used.append(drafter(books, b"%d" % group, [group]))
        for reader in used[-3:]:  # replies go on though their book is forgotten
            reader.extend(range(1000 * group, 1000 * group + 40))
            reader.study()
        assert books.num_entries == sum(b.num_counted for b in books._books.values()) <= 1000
        assert books.num_entries == sum(b._memory.num_entries for b in books._books.values())
    assert 1 < len(books) < 50
    last = drafter(books, b"49", [7])
    last.extend([49_000, 49_001])
    assert last.draft_after((), 2).ids == (49_002, 49_003), "the newest is kept"


def test_nobodys_replies_leave_nothing() -> None:
    books = PhraseBooks()
    answer(books, b"")
    later = drafter(books, b"", [50])
    later.extend(REPLY[:3])
    assert later.draft_after((), 4) == Guess()
    assert (len(books), books.num_entries) == (0, 0)


def test_the_prior_serves_every_group() -> None:
    books = PhraseBooks(NgramPrior([{keys([7])[0]: pack(8, 4)}]))
    assert drafter(books, b"x", [7]).draft_after((), 1).ids == (8,)
