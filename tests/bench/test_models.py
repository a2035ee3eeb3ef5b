"""What `bench.models` says, from what was found; and that it leaves no kind of model out."""

from __future__ import annotations

import json
from pathlib import Path

import gguf

from bench.harness import Run
from bench.models import tables
from bench.models.engine_worker import decode
from bench.models.measuring import ALL, CHOSEN, NONE, PATTERNS, Measured
from bench.models.replicas import Memory
from bench.models.subjects import TYPE_CLASSES, Subject, tiny_models
from outrider.engines.config import EngineConfig
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.engines.openvino.architectures import ARCHITECTURES
from outrider.engines.openvino.repacking import READABLE
from outrider.models.definitions import ModelSpec
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from services.inference.reference import generate

MEMORY = Memory(resident=900.0, proportional=850.0, anonymous=800.0, peak=1000.0)


def measured(num_equal: int = 8) -> Measured:
    speeds = {CHOSEN: [20.0, 22.0], NONE: [18.0, 19.0], ALL: [20.0, 21.0]}
    times = {CHOSEN: [50.0, 50.0], NONE: [55.0, 55.0], ALL: [50.0, 50.0]}
    return Measured(
        Subject(ModelSpec("m", "file:/m.gguf"), "GGUF, Q8_0"),
        *(12.34, 3.21, 1500.0),
        memory=MEMORY,
        copies=[1, 2],
        num_replies=8,
        num_equal=num_equal,
        num_tokens=256,
        tokens_per_s=dict.fromkeys(PATTERNS, speeds),
        cpu_ms=dict.fromkeys(PATTERNS, times),
    )


def test_tables_and_figures() -> None:
    run = Run("models", quick=True, command="")
    tiny = Measured(Subject(ModelSpec("t", "file:/t"), "GGUF", is_tiny=True), memory=MEMORY)
    tables.report(run, [measured(), tiny], {"large": "large was not measured: no"})
    starts, speeds = run.tables
    assert starts.rows[0][:5] == ("m", "GGUF, Q8_0", 12.34, 3.21, 1500.0)
    assert starts.rows[0][5:] == (1000.0, 900.0, 850.0, 800.0, "1, 2", 256, "8 of 8")
    assert starts.rows[1][9] == "none"
    assert starts.notes == ["large was not measured: no."]
    assert len(speeds.rows) == len(PATTERNS), "tiny models have no speed"
    assert speeds.rows[0][6:] == ("1.00 (1.00 to 1.00)", "1.10 (1.10 to 1.10)")
    figures = json.loads(json.dumps(run.figures))
    assert figures["exact"] == {"m": True, "t": False}, "nothing compared is not exact"
    assert figures["rss_mb"] == {"m": 1000.0, "t": 1000.0}
    assert figures["ready_s"]["m"] == {"cold": 12.3, "warm": 3.2}
    assert figures["tokens_per_s"]["m"]["no drafts"][ALL] == 20.5


def test_one_reply_that_differs_is_not_exact() -> None:
    assert measured().exact and not measured(num_equal=7).exact


def test_every_architecture_and_every_type_is_among_the_tiny_models(tmp_path: Path) -> None:
    assert sorted(name for names in TYPE_CLASSES.values() for name in names) == sorted(READABLE)
    for quick in (True, False):
        models = tiny_models(tmp_path, quick=quick)
        files = [gguf.GGUFReader(subject.spec.source.removeprefix("file:")) for subject in models]
        found = {file.fields["general.architecture"].contents() for file in files}
        assert found == set(ARCHITECTURES)
    types = {
        tensor.tensor_type.name
        for file in files
        for tensor in file.tensors
        if len(tensor.shape) == 2
    }
    assert types == set(READABLE)


def test_a_known_reply_is_decoded_with_right_drafts() -> None:
    engine = FakeEngine(FakeOptions(vocabulary_size=50, num_blocks=16))
    prompt = list(range(20))
    params = SamplingParams(max_tokens=17, ignore_eos=True)
    reply = generate(engine, prompt, params, lambda p: ReplyText(p, (), _NoText())).ids
    for drafts in PATTERNS.values():
        done = decode(engine, prompt, reply, drafts)
        assert done["equal"]
        assert done["tokens"] == 17
    wrong = [*reply[:5], (reply[5] + 1) % 50, *reply[6:]]
    assert not decode(engine, prompt, wrong, (0, 1, 3))["equal"]
    assert EngineConfig().max_fixed_bytes == 0


class _NoText:
    """A detokenizer of tokens without text."""

    def push(self, id: int, /) -> str:
        return ""

    def push_all(self, ids: object, /) -> str:
        return ""

    def finish(self) -> str:
        return ""
