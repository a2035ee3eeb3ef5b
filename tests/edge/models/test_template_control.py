"""What requests may ask of chat templates, with and without variables for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.errors import InvalidRequestError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams
from services.edge.models.template_control import TemplateControl
from services.edge.session.events import ChatRequest
from services.edge.session.template_options import TemplateOptions
from tests.models import thinking_templates, tool_templates

QWEN3 = TemplateControl.of(thinking_templates.vocabulary_of(thinking_templates.QWEN3))
R1 = TemplateControl.of(thinking_templates.vocabulary_of(thinking_templates.R1))
PLAIN = TemplateControl.of(tool_templates.vocabulary_of(tool_templates.PLAIN))
GRANITE = TemplateControl(frozenset({"thinking"}), True)
GPT_OSS = TemplateControl(frozenset({"reasoning_effort", "model_identity"}), True)

ON = TemplateOptions(thinks=True, thinks_field="enable_thinking")
OFF = TemplateOptions(thinks=False, thinks_field="enable_thinking")
PERMITTED = TemplateOptions(thinks=True)
HIGH = TemplateOptions(effort="high", effort_field="reasoning_effort")
NO_EFFORT = TemplateOptions(effort="none", effort_field="reasoning_effort")


@pytest.mark.parametrize(
    ("control", "options", "variables"),
    [
        (QWEN3, ON, {"enable_thinking": True}),
        (QWEN3, OFF, {"enable_thinking": False}),
        (QWEN3, PERMITTED, {"enable_thinking": True}),
        (QWEN3, HIGH, {"enable_thinking": True}),
        (QWEN3, NO_EFFORT, {"enable_thinking": False}),
        (GRANITE, OFF, {"thinking": False}),
        (GPT_OSS, HIGH, {"reasoning_effort": "high"}),
        (GPT_OSS, TemplateOptions(effort="high"), {"reasoning_effort": "high"}),
        (GPT_OSS, ON, {}),
        (R1, ON, {}),
        (R1, PERMITTED, {}),
        (R1, TemplateOptions(effort="high"), {}),
        (PLAIN, OFF, {}),
        (PLAIN, NO_EFFORT, {}),
        (PLAIN, PERMITTED, {}),
    ],
)
def test_what_a_template_can_be_told_it_is_told(
    control: TemplateControl, options: TemplateOptions, variables: dict[str, Any]
) -> None:
    given = control.given(options)
    assert json.loads(given or "{}") == variables


@pytest.mark.parametrize(
    ("control", "options", "param"),
    [
        (R1, HIGH, "reasoning_effort"),
        (PLAIN, ON, "enable_thinking"),
        (PLAIN, HIGH, "reasoning_effort"),
        (
            PLAIN,
            TemplateOptions('{"enable_thinking":true}'),
            "chat_template_kwargs.enable_thinking",
        ),
        (QWEN3, TemplateOptions('{"foo":1}'), "chat_template_kwargs.foo"),
    ],
)
def test_what_it_cannot_be_told_is_refused_by_name(
    control: TemplateControl, options: TemplateOptions, param: str
) -> None:
    with pytest.raises(InvalidRequestError, match="no variable") as refused:
        control.given(options)
    assert refused.value.metadata["param"] == param


@pytest.mark.parametrize("options", [OFF, NO_EFFORT])
def test_a_model_that_always_thinks_is_ended_at_once(options: TemplateOptions) -> None:
    asked = ChatRequest(
        "r", "m", (Message("user", "hi"),), SamplingParams(), template_options=options
    )
    assert R1.applied(asked).sampling == SamplingParams(max_thinking_tokens=0)
    for control in (QWEN3, PLAIN):
        assert control.applied(asked).sampling == SamplingParams()


def test_variables_by_name_win() -> None:
    named = TemplateOptions('{"enable_thinking":true}', thinks=False, thinks_field="thinking")
    assert json.loads(QWEN3.given(named)) == {"enable_thinking": True}


def test_a_request_gets_its_variables_and_a_raw_prompt_none() -> None:
    request = ChatRequest("r", "m", (Message("user", "hi"),), SamplingParams())
    assert QWEN3.applied(request) == request
    asked = ChatRequest("r", "m", (Message("user", "hi"),), SamplingParams(), template_options=OFF)
    assert QWEN3.applied(asked).template_variables == '{"enable_thinking":false}'
    raw = ChatRequest("r", "m", (), SamplingParams(), raw_prompt="x", template_options=OFF)
    assert QWEN3.applied(raw) == raw
