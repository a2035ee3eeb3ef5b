"""Small random models with the chat templates of models that think: a mesh of real processes gives
the reference's reasoning and answer, at a limit of reasoning too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.harness.local_mesh import local_mesh, outrider
from tests.e2e.tiny_models import write_tiny
from tests.models.thinking_templates import QWEN3, R1, SMOLLM3

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FEW = (
    *("inference.max_fixed_rows=2", "inference.warm_up_rows=16", "edge.drafter.model=none"),
    *("edge.tokenization.backend=tokenizers", "tokenizer.backend=tokenizers"),
)
PROMPT = ("--prompt", "2+2?", "--max-tokens", "40", "--json")
BUDGET = 9
LIMITED = ("--max-thinking-tokens", str(BUDGET))
OFF = ("--template-variables", '{"enable_thinking": false}')


def asked(command: str, *arguments: str) -> dict[str, Any]:
    done = outrider(command, *PROMPT, *arguments, check=False)
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    return {key: reply[key] for key in ("ids", "text", "content", "reasoning")}


def test_a_mesh_thinks_as_the_reference_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    file = write_tiny(tmp_path / "thinker.gguf", 0.2, template=R1)
    model = ("--model", str(file))
    truths = {flags: asked("reference", *model, *flags) for flags in ((), LIMITED)}
    assert truths[()]["reasoning"] and not truths[()]["content"], "it never ends by itself"
    limited = truths[LIMITED]
    assert limited["text"].startswith(f"{limited['reasoning']}</think>")
    assert len(limited["reasoning"]) <= BUDGET < len(limited["content"])
    with local_mesh(regions="here", settings=FEW, model=str(file)) as mesh:
        here = ("--state-dir", str(mesh.state_dir))
        for flags, truth in truths.items():
            assert asked("chat", *here, *flags) == truth
            assert asked("chat", *here, "--thin", *flags) == truth
        refused = outrider("chat", *here, *PROMPT, *OFF, check=False)
        assert refused.returncode == 1 and "enable_thinking" in refused.stdout + refused.stderr


@pytest.mark.parametrize("template", [QWEN3, SMOLLM3], ids=["qwen3", "smollm3"])
def test_the_reference_turns_thinking_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    file = write_tiny(tmp_path / "switch.gguf", 0.2, template=template)
    thinking, off = (asked("reference", "--model", str(file), *it) for it in ((), OFF))
    assert thinking["ids"] != off["ids"], "another prompt"
