"""The script for a GPU runs from end to end where there is none, and goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from bench.gpu.__main__ import STAGES
from bench.gpu.truncated_model import TruncatedModel, write_truncated
from outrider.engines.torch.decoder_file import DecoderFile
from tests.fidelity.models import Shape, weights, write

pytestmark = pytest.mark.torch


def run(out: Path, *arguments: str) -> dict[str, Any]:
    """The last line of a run on the CPU."""
    command = [sys.executable, "-m", "bench.gpu", "--out", str(out), "--device", "cpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_every_stage_ends_and_is_kept(tmp_path: Path) -> None:
    shape = Shape()
    source = write(
        tmp_path / "m.gguf",
        shape,
        weights(shape),
        vocabulary=[chr(0x100 + n) for n in range(shape.vocabulary)],
    )
    truncated, out = tmp_path / "truncated.npz", tmp_path / "out"
    write_truncated(source, 1, truncated)
    told = run(out, "--truncated", str(truncated))
    assert told["device"] == "cpu" and told["contract"] == "passed" and told["bits_equal"]
    assert {"1 x 128", "8 x 128"} <= told["step_ms"].keys()
    assert all(one["texts_equal"] for one in told["tokens_per_s"].values())
    assert told["exact_over_library"]["one by one"] > 0
    assert told["share_of_memory_speed"]["exact int8, one by one"] > 0
    assert all(one["apart"] < 1e-5 for one in told["values"].values())
    stages = {file.stem: json.loads(file.read_text()) for file in out.glob("*.json")}
    assert stages.keys() == STAGES.keys()
    assert not any("failed" in figures for figures in stages.values())
    assert any("int8" in check for check in stages["contract"]["checks"])
    # What is there is not done again.
    (out / "tokens.json").write_text('{"tokens_per_s": {"1": {"texts_equal": true}}}')
    again = run(out, "--budget-s", "0")
    assert again == told | {"tokens_per_s": {"1": {"texts_equal": True}}}


def test_a_truncated_model_is_the_first_layers_of_the_whole_one(tmp_path: Path) -> None:
    shape = Shape()
    tensors = weights(shape)
    names = [chr(0x100 + n) for n in range(shape.vocabulary)]
    file = DecoderFile(write(tmp_path / "m.gguf", shape, tensors, vocabulary=names))
    write_truncated(tmp_path / "m.gguf", 1, tmp_path / "t.npz")
    found = TruncatedModel(tmp_path / "t.npz")
    assert found.shape == replace(file.shape, layers=file.shape.layers[:1])
    assert "blk.0.attn_q.weight" in found and "blk.1.attn_q.weight" not in found
    assert torch.equal(found.tensor("output_norm.weight"), file.tensor("output_norm.weight"))
    matrix = file.tensor("blk.0.attn_q.weight")
    assert (found.tensor("blk.0.attn_q.weight") - matrix).abs().max() < matrix.abs().max() / 127
    rule = file.shape.layers[0]
    assert (found.frequencies(rule) == file.frequencies(rule)).all()
