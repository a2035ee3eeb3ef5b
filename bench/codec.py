"""Bytes and microseconds of the token codecs, next to protobuf's packed uint32 and plain text.

The ids are those of the shared prompts, from which no rank table was made. Messages are counted
whole: a token block with its codec, count and checksum, a packed field with its tag and length. Of
commits and drafts what carries ids is counted, with tags and lengths.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.harness import Run, parser, start, time_us
from bench.harness.prompts import load_prompts
from outrider.codec.prompt_memory import PromptMemory
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCodec, TokenCoder
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.session.region_wire import ids_of, put_ids
from outrider.v1 import common_pb2, edge_pb2, inference_pb2
from outrider.wire import token_block_from_proto, token_block_to_proto
from services.edge.access.identity import UNIDENTIFIED
from services.edge.session.events import ChatRequest, OpenRegion
from services.edge.wire.region import RegionCodec, RegionWire

BLOCK_TOKENS = (16, 128, 1024)
COMMIT_TOKENS = (1, 2, 4, 8)
PACKED = "protobuf packed"
NUM_TURNS = 10
_CALLS = 20


@dataclass(frozen=True, slots=True)
class Form:
    """One way to send ids."""

    name: str
    encode: Callable[[Sequence[int]], bytes]
    decode: Callable[[bytes], Sequence[int]]


def main() -> int:
    run = start("codec", parser("codec", __doc__ or "").parse_args())
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    forms = [*_codecs(vocabulary), _packed()]
    _bytes_by_kind(run, vocabulary, forms)
    repeats = 20 if run.quick else 200
    _by_block_size(run, vocabulary, forms, repeats)
    _commits(run, vocabulary, repeats)
    _chats(run, vocabulary)
    _returning(run, vocabulary)
    run.finish()
    return 0


def _codecs(vocabulary: Vocabulary) -> list[Form]:
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))

    def form(codec: TokenCodec) -> Form:
        def encode(ids: Sequence[int]) -> bytes:
            return token_block_to_proto(coder.encode(ids, codec)).SerializeToString()

        def decode(data: bytes) -> Sequence[int]:
            block = token_block_from_proto(common_pb2.TokenBlock.FromString(data))
            return coder.decode(block, max_count=1 << 20)

        return Form(codec.name.lower(), encode, decode)

    return [form(codec) for codec in coder.supported]


def _packed() -> Form:
    """A message whose only content is a packed repeated uint32."""
    return Form(
        PACKED,
        lambda ids: edge_pb2.CommitText(ids=ids).SerializeToString(),
        lambda data: list(edge_pb2.CommitText.FromString(data).ids),
    )


def _bytes_by_kind(run: Run, vocabulary: Vocabulary, forms: list[Form]) -> None:
    """Every prompt as one message."""
    names = [form.name for form in forms]
    title = "Size of token ids on the wire, bytes per token: one message per prompt, by encoding"
    table = run.table(title, "prompts", "n", *names, "UTF-8 text")
    prompts = load_prompts()
    for kind in ["all", *dict.fromkeys(prompt.kind for prompt in prompts)]:
        texts = [prompt.text for prompt in prompts if kind in ("all", prompt.kind)]
        encoded = [vocabulary.encode(text) for text in texts]
        num_tokens = sum(len(ids) for ids in encoded)
        sizes = [sum(len(form.encode(ids)) for ids in encoded) / num_tokens for form in forms]
        text_size = sum(len(text.encode()) for text in texts) / num_tokens
        table.add(kind, len(texts), *sizes, text_size)


def _by_block_size(run: Run, vocabulary: Vocabulary, forms: list[Form], repeats: int) -> None:
    """The ids of all prompts in a row, cut into messages of n tokens."""
    ids = list(itertools.chain(*(vocabulary.encode(prompt.text) for prompt in load_prompts())))
    table = run.table(
        "Size and speed of each encoding by tokens per message",
        "tokens",
        "encoding",
        "bytes per token",
        "encode, us",
        "decode, us",
    )
    for count in BLOCK_TOKENS:
        blocks = [ids[at : at + count] for at in range(0, len(ids) - count + 1, count)][:256]
        for form in forms:
            data = [form.encode(block) for block in blocks]
            assert [tuple(form.decode(message)) for message in data] == [*map(tuple, blocks)]
            size = sum(map(len, data)) / (count * len(data))
            times = _speed(form, blocks, data, repeats)
            for way, sample in times.items():
                run.samples(f"{way}, {form.name}, {count} tokens", sample, unit="us")
            table.add(count, form.name, size, *(table.median(s) for s in times.values()))
    table.note(f"Times: n = {repeats}, each the mean of {_CALLS} calls.")


def _frames(vocabulary: Vocabulary) -> list[Form]:
    """Ids in a commit, without a header: by each codec that they can have, and packed."""
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))

    def form(codec: TokenCodec) -> Form:
        def encode(ids: Sequence[int]) -> bytes:
            frame = inference_pb2.Commit()
            put_ids(frame, coder, ids, codec)
            return frame.SerializeToString()

        def decode(data: bytes) -> Sequence[int]:
            return ids_of(inference_pb2.Commit.FromString(data), coder, max_count=1 << 12)

        return Form(codec.name.lower(), encode, decode)

    return [form(codec) for codec in coder.supported if codec != TokenCodec.U16]


def _commits(run: Run, vocabulary: Vocabulary, repeats: int) -> None:
    """What commits carry, beside a packed field."""
    ids = list(itertools.chain(*(vocabulary.encode(prompt.text) for prompt in load_prompts())))
    table = run.table(
        "Ids in a commit or a draft, by its tokens",
        *("tokens", "encoding", "bytes", "payload", "encode, us", "decode, us"),
    )
    for count in COMMIT_TOKENS:
        blocks = [ids[at : at + count] for at in range(0, len(ids) - count + 1, count)][:256]
        for form in [*_frames(vocabulary), _packed()]:
            data = [form.encode(block) for block in blocks]
            assert [tuple(form.decode(message)) for message in data] == [*map(tuple, blocks)]
            size = sum(map(len, data)) / len(data)
            head = 1 if count == 1 and form.name != PACKED else 2
            times = _speed(form, blocks, data, repeats)
            for way, sample in times.items():
                run.samples(f"{way}, commit, {form.name}, {count} tokens", sample, unit="us")
            medians = (table.median(sample) for sample in times.values())
            table.add(count, form.name, size, size - head, *medians)
    table.note(f"Times: n = {repeats}, each the mean of {_CALLS} calls, message included.")


def _chats(run: Run, vocabulary: Vocabulary) -> None:
    """All ids of a chat, up and down: six tenths of each text as the prompt, the rest the reply."""
    ours, packed = _frames(vocabulary)[0], _packed()
    whole = _codecs(vocabulary)[0]
    title = "Ids of whole chats, both ways, bytes: prompt, drafts and commits"
    table = run.table(title, "reply", "chats", "tokens", "bytes", "packed", "fewer")
    parted = []
    for prompt in load_prompts():
        ids = vocabulary.encode(prompt.text)
        parted.append((ids[: len(ids) * 6 // 10], ids[len(ids) * 6 // 10 :]))
    num_tokens = sum(len(prompt) + len(reply) for prompt, reply in parted)
    for name, steps in (("a token at a time", _plain), ("four drafts, two right", _drafted)):
        sizes = [
            sum(
                len(first.encode(prompt))
                + sum(len(form.encode(part)) for part in steps(reply) if part)
                for prompt, reply in parted
            )
            for first, form in ((whole, ours), (packed, packed))
        ]
        fewer = 1 - sizes[0] / sizes[1]
        table.add(name, len(parted), num_tokens, *sizes, f"{fewer:.1%}")


def _returning(run: Run, vocabulary: Vocabulary) -> None:
    """A chat that comes back again and again: what its prompts take, and what its replies do."""
    ours, packed = _frames(vocabulary)[0], _packed()
    title = f"Ids of chats of {NUM_TURNS} turns, bytes, a token at a time down"
    table = run.table(title, "prompts are sent", "prompts", "replies", "both", "than packed")
    chats = _turns(vocabulary)
    replies = [reply for turns in chats for _, reply in turns]
    down = sum(len(ours.encode([token])) for reply in replies for token in reply)
    packed_down = sum(len(packed.encode([token])) for reply in replies for token in reply)
    packed_up = sum(len(packed.encode(prompt)) for turns in chats for prompt, _ in turns)
    whole = _codecs(vocabulary)[0]
    whole_up = sum(len(whole.encode(prompt)) for turns in chats for prompt, _ in turns)
    ups = {PACKED: packed_up, "whole": whole_up, "what is new": _sent(vocabulary, chats)}
    for name, up in ups.items():
        both = up + (packed_down if name == PACKED else down)
        fewer = 1 - both / (packed_up + packed_down)
        table.add(name, up, both - up, both, f"{fewer:.1%} fewer")
    table.note(
        f"{len(chats)} chats. A question and its reply are a fourth and three fourths of a text of "
        "the held-out prompts; each prompt is the one before, its reply, and a question. "
        "Names, counts and checksums are counted."
    )


def _turns(vocabulary: Vocabulary) -> list[list[tuple[list[int], list[int]]]]:
    """Of each chat the prompts and the replies to them."""
    texts = [vocabulary.encode(prompt.text) for prompt in load_prompts()]
    chats = []
    for at in range(0, len(texts) - NUM_TURNS + 1, NUM_TURNS):
        prompt: list[int] = []
        turns = []
        for ids in texts[at : at + NUM_TURNS]:
            cut = max(1, len(ids) // 4)
            prompt = [*prompt, *ids[:cut]]
            turns.append((prompt, [*ids[cut:]]))
            prompt = [*prompt, *ids[cut:]]
        chats.append(turns)
    return chats


def _sent(vocabulary: Vocabulary, chats: list[list[tuple[list[int], list[int]]]]) -> int:
    """Bytes of prompts from an edge to one router that has all of them in memory."""
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    region, known = RegionCodec(), PromptMemory(1 << 30, is_searched=True)
    region.codec = coder.supported[0]
    identity = replace(UNIDENTIFIED, cache_salt=b"s" * 16, group=b"g" * 16)
    total = 0
    for turns in chats:
        for prompt, reply in turns:
            wire = RegionWire(coder, vocabulary.digest, "", identity, None, region)
            request = ChatRequest("r", "", (), SamplingParams())
            opening = wire.open(OpenRegion(request, tuple(prompt), 0), ("", ""), known)
            total += opening.open.ids.ByteSize()
            wire.replied(known, reply, coder.checksum(reply))
    return total


def _plain(reply: Sequence[int]) -> list[Sequence[int]]:
    return [[token] for token in reply]


def _drafted(reply: Sequence[int]) -> list[Sequence[int]]:
    """Up four drafts; down the token behind the two that were right."""
    parts: list[Sequence[int]] = []
    for at in range(0, len(reply), 3):
        parts += [reply[at : at + 4], reply[at + 2 : at + 3]]
    return parts


def _speed(
    form: Form, blocks: list[list[int]], data: list[bytes], repeats: int
) -> dict[str, list[float]]:
    blocks_forever, data_forever = itertools.cycle(blocks), itertools.cycle(data)
    return {
        "encode": time_us(lambda: form.encode(next(blocks_forever)), repeats=repeats, calls=_CALLS),
        "decode": time_us(lambda: form.decode(next(data_forever)), repeats=repeats, calls=_CALLS),
    }


if __name__ == "__main__":
    sys.exit(main())
