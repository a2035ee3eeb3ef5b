"""One run on a GPU: the target writes prompts and answers them, then a draft is distilled from what
it thought. Nothing but the draft leaves the device."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.errors import UnsupportedModelError
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from tools.train_draft.distillation import Distiller, frequent_ids
from tools.train_draft.draft_file import Draft, read_draft, write_draft
from tools.train_draft.network import Student
from tools.train_draft.prompts import shipped_grammar
from tools.train_draft.schedule import Schedule
from tools.train_draft.self_written import (
    Seed,
    canonical,
    forbidden,
    grammar_seed,
    own_seed,
    reply_plan,
    template_of,
)
from tools.train_draft.slots import Chats, Pool, Slots, for_seconds, joined, wanted
from tools.train_draft.target import OUTPUT, Floats, TargetFile, open_target
from tools.train_draft.target_network import TargetNetwork
from tools.train_draft.training import device_of

_HELD_BACK = 64
"""One chat in so many is not learnt from: agreement is measured on them."""
_CHECKPOINT_S = 90.0
_DOCUMENT_SHARE = 0.5
_ASKED_FIRST_SHARE = 0.3
_OWN_TURN_SHARE = 0.5
_LONGEST_TURNS = 512
"""A stage of longer chats has documents alone."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Chats of one length, generated together."""

    num_slots: int
    span: int
    """Tokens of a chat at most."""
    share: float
    """Of the time to generate in."""
    lengths: tuple[int, ...]
    """Of replies at most, drawn with these weights:"""
    weights: tuple[int, ...]
    num_seeds: int = 20_000
    later: bool = False
    """Whether its prompts are made of the earlier stages' replies: longer texts, further turns."""


STAGES = (
    Stage(4096, 128, 0.42, (8, 16, 32), (25, 45, 30)),
    Stage(2048, 256, 0.33, (48, 96), (60, 40)),
    Stage(1024, 512, 0.15, (24, 64, 192), (40, 40, 20), later=True),
    Stage(384, 1408, 0.10, (24, 64, 128), (50, 40, 10), 3000, later=True),
)
"""Mostly short replies: first tokens are the hardest, and what a user sees first."""


def first_seeds(vocabulary: Vocabulary, stage: Stage, numbers: range) -> list[Seed]:
    """Of a stage that needs no other, a function of the stage and these numbers."""
    template, seeds = template_of(vocabulary), []
    for number in numbers:
        rng = random.Random(f"distil:{stage.span}:{number}")
        if number % 5 < 2:
            # Numbers that no other split or stage draws.
            drawn = (stage.span << 32) + number
            seeds.append(grammar_seed(vocabulary, drawn, rng, stage.lengths, stage.weights))
        else:
            seeds.append(own_seed(vocabulary, template, rng, stage.lengths, stage.weights))
    return seeds


def later_seeds(
    vocabulary: Vocabulary, stage: Stage, chats: Chats, chosen: Tensor, stop_id: int
) -> list[Seed]:
    """Of what was said so far: questions about texts, next turns."""
    template, grammar = template_of(vocabulary), shipped_grammar()
    rng = random.Random(f"distil:{stage.span}")
    number = min(len(chosen), 4 * stage.num_seeds)
    which = chosen[torch.randperm(len(chosen), generator=_generator())[:number].to(chosen.device)]
    offsets, lengths, replies = (
        part[which].tolist() for part in (chats.offsets, chats.lengths, chats.replies)
    )
    all_tokens = chats.tokens.cpu().numpy()
    texts = [
        all_tokens[begin : begin + n].tolist() for begin, n in zip(offsets, lengths, strict=True)
    ]
    ended = [text for text in texts if text[-1] == stop_id]
    passages = [
        [i for i in text[-n:] if i != stop_id]
        for text, n in zip(texts, replies, strict=True)
        if n >= min(40, stage.span // 16)
    ]
    seeds: list[Seed] = []
    while len(seeds) < stage.num_seeds and ended and passages:
        plan = reply_plan(rng, stage.lengths, stage.weights)
        if rng.random() < _DOCUMENT_SHARE or stage.span > _LONGEST_TURNS:
            num_tokens = rng.randint(stage.span // 4, stage.span * 3 // 4)
            ids = [*template.begin, *_document(vocabulary, passages, num_tokens, rng)]
            seeds.append(Seed((*ids, *template.answer), False, *plan))
            continue
        ids = [*rng.choice(ended), *template.again]
        if rng.random() < _OWN_TURN_SHARE:
            seeds.append(Seed(tuple(ids), True, *plan))
            continue
        ids += vocabulary.encode(grammar.draw("followup", rng))
        seeds.append(Seed((*ids, *template.answer), False, *plan))
    return seeds


def _document(
    vocabulary: Vocabulary, passages: Sequence[list[int]], num_tokens: int, rng: random.Random
) -> list[int]:
    """Passages of at least so many tokens, and what is asked about them behind or before."""
    gap = vocabulary.encode("\n\n")
    ask = vocabulary.encode(shipped_grammar().draw("documentask", rng))
    ids: list[int] = []
    while len(ids) < num_tokens:
        ids += [*rng.choice(passages), *gap]
    if rng.random() < _ASKED_FIRST_SHARE:
        return [*ask, *gap, *ids[: -len(gap)]]
    return ids + ask


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(2)


class Run:
    """All of it. Prints what it does."""

    def __init__(self, arguments: argparse.Namespace, stages: Sequence[Stage] = STAGES) -> None:
        self._begin = time.monotonic()
        self._arguments = arguments
        self._stages = stages
        spec, store = lookup(arguments.model), ModelStore(default_root())
        self._vocabulary = load_vocabulary(spec, store)
        self._template = template_of(self._vocabulary)
        self._seeds = self._first_seeds()
        self.say(f"{sum(map(len, self._seeds.values()))} seeds")
        self._canonical = canonical(self._vocabulary)
        self._forbidden = forbidden(self._vocabulary, self._canonical)
        target = open_target(spec, store)
        if not isinstance(target, TargetFile) or not target.is_llama:
            raise UnsupportedModelError(
                f"{spec.name} is no GGUF file of a Llama model, which alone `distil` computes; "
                "use generate and train"
            )
        geometry = target.geometry
        everything = np.arange(geometry.vocab_size, dtype=np.uint32)
        tensors = target.student_tensors(range(geometry.block_count), everything)
        self._embedding = target.embedding()
        self.device = device_of(arguments.device)
        kind = torch.float32 if self.device.type == "cpu" else torch.float16
        self.network = TargetNetwork(geometry, tensors, self._embedding, self.device, kind)
        self._head = tensors[OUTPUT]
        self.start = read_draft(arguments.start)
        self.say("target loaded")

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begin:6.1f} s {text}", flush=True)

    def _first_seeds(self) -> dict[Stage, list[Seed]]:
        """By processes."""
        num = self._arguments.threads
        context = multiprocessing.get_context("spawn")  # noqa: TID251 - spawn does not fork
        with context.Pool(num) as pool:
            found = {}
            for stage in self._stages:
                if not stage.later:
                    shares = [range(at, stage.num_seeds, num) for at in range(num)]
                    parts = pool.map(partial(first_seeds, self._vocabulary, stage), shares)
                    found[stage] = [seed for part in parts for seed in part]
                    random.Random(0).shuffle(found[stage])
        return found

    def chats(self) -> Chats:
        """Have the target write and answer."""
        pool, before = Pool(), 0
        seconds = self._arguments.generate_minutes * 60
        for stage in self._stages:
            begin = time.monotonic()
            seeds = (
                self._seeds[stage] if not stage.later else self._later_seeds(stage, joined(pool))
            )
            if not seeds:
                self.say(f"span {stage.span}: nothing to go on from")
                continue
            slots = Slots(
                self.network,
                self._template,
                tuple(self._vocabulary.stop_ids),
                seeds,
                stage.num_slots,
                stage.span,
                reads=stage.later,
                graphs=self.device.type == "cuda",
            )
            slots.run(pool, for_seconds(stage.share * seconds - (time.monotonic() - begin)))
            took = time.monotonic() - begin
            self.say(
                f"span {stage.span}: {pool.num_rows - before} reply tokens, "
                f"{slots.num_steps} steps, {slots.num_steps * stage.num_slots / took:.0f} rows/s"
            )
            before = pool.num_rows
            del slots
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return joined(pool)

    def _later_seeds(self, stage: Stage, chats: Chats) -> list[Seed]:
        end = self._template.answer[0]
        return later_seeds(self._vocabulary, stage, chats, self._wanted(chats), end)

    def _wanted(self, chats: Chats) -> Tensor:
        there = [
            torch.from_numpy(part).to(self.device) for part in (self._canonical, self._forbidden)
        ]
        return wanted(chats, *there)

    def learn(self, chats: Chats) -> Draft:
        """Distil; writes the draft now and then and at the end."""
        arguments = self._arguments
        chosen = self._wanted(chats)
        self.say(
            f"{len(chats)} chats, {len(chosen)} of them new, "
            f"{int(chats.own[chosen].sum())} written by the target, "
            f"{int(chats.replies[chosen].sum())} reply tokens"
        )
        self._show(chats, chosen)
        always = np.array(sorted({*self._vocabulary.stop_ids, *self._single_bytes()}))
        size = len(self._head)
        head_ids = frequent_ids(chats, chosen, len(self.start.head_ids), always, size)
        student = Student(self.start.geometry, self._tensors(head_ids), self._embedding)
        schedule = Schedule(arguments.steps, arguments.minutes * 60, arguments.rate)
        distiller = Distiller(
            student.to(self.device),
            head_ids,
            self.network.head,
            schedule,
            tokens_per_batch=arguments.batch_tokens,
            quantised_from=arguments.quantised_from,
        )
        order = torch.randperm(len(chosen), generator=_generator()).to(self.device)
        num_held = max(1, len(order) // _HELD_BACK)
        held, learnt = (chosen[part] for part in (order[:num_held], order[num_held:]))
        kept = len(set(head_ids.tolist()) & set(self.start.head_ids.tolist()))
        self.say(f"head keeps {kept} ids; before: {distiller.agreement(chats, held[:4096])}")
        saved = time.monotonic()

        def draft() -> Draft:
            return replace(self.start, tensors=student.tensors(), head_ids=head_ids)

        def report(progress: float, step: int, loss: float) -> None:
            nonlocal saved
            self.say(
                f"{progress:.0%} step {step} loss {loss:.4f} "
                f"{distiller.num_tokens / 1e6:.1f} M tokens, "
                f"{distiller.num_targets / 1e6:.1f} M learnt from, epoch {distiller.num_epochs}"
            )
            if time.monotonic() - saved > _CHECKPOINT_S:
                write_draft(arguments.out, draft(), "Q4_1", "Q8_0")
                self.say(f"saved: {distiller.agreement(chats, held[:2048])}")
                saved = time.monotonic()

        distiller.run(chats, learnt, report, arguments.report_every)
        write_draft(arguments.out, draft(), "Q4_1", "Q8_0")
        self.say(
            f"step {distiller.step}, {distiller.num_tokens / 1e6:.1f} M tokens, "
            f"{distiller.num_targets / 1e6:.1f} M learnt from, {distiller.num_epochs} epochs: "
            f"{distiller.agreement(chats, held)}"
        )
        return draft()

    def _tensors(self, head_ids: npt.NDArray[np.uint32]) -> dict[str, Floats]:
        """The start's, with the target's own rows where its head has none."""
        head = np.ascontiguousarray(self._head[head_ids])
        old = {int(i): row for row, i in enumerate(self.start.head_ids)}
        for row, i in enumerate(head_ids.tolist()):
            if i in old:
                head[row] = self.start.tensors[OUTPUT][old[i]]
        return {**self.start.tensors, OUTPUT: head}

    def _single_bytes(self) -> list[int]:
        """Ids of single bytes: scripts for which there are no words are made of them."""
        return [
            i
            for i in range(self._vocabulary.size)
            if len(self._vocabulary.token_bytes(i)) == 1
            and self._vocabulary.token_bytes(i)[0] >= 128
        ]

    def _show(self, chats: Chats, chosen: Tensor, count: int = 12) -> None:
        for at in chosen[:: max(1, len(chosen) // count)][:count].tolist():
            begin, length = int(chats.offsets[at]), int(chats.lengths[at])
            text = self._vocabulary.decode(chats.tokens[begin : begin + length].tolist())
            print(repr(text[-220:]), flush=True)


def distil(arguments: argparse.Namespace) -> None:
    """All of it."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    run = Run(arguments)
    run.learn(run.chats())
