"""What requests may ask of chat templates, with and without variables for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outrider.errors import InvalidRequestError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams
from services.edge.models.template_control import TemplateControl
from services.edge.session.events import ChatRequest, ResumePoint
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
CONTINUING = '{"continue_final_message":true}'
TODAY = "2026-11-29"
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
        (PLAIN, TemplateOptions(continues=True), {"continue_final_message": True}),
        (PLAIN, TemplateOptions(CONTINUING), {"continue_final_message": True}),
    ],
)
def test_what_a_template_can_be_told_it_is_told(
    control: TemplateControl, options: TemplateOptions, variables: dict[str, Any]
) -> None:
    given = control.given(options, TODAY)
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
        control.given(options, TODAY)
    assert refused.value.metadata["param"] == param


@pytest.mark.parametrize("options", [OFF, NO_EFFORT])
def test_a_model_that_always_thinks_is_ended_at_once(options: TemplateOptions) -> None:
    asked = ChatRequest(
        "r", "m", (Message("user", "hi"),), SamplingParams(), template_options=options
    )
    assert R1.applied(asked, TODAY).sampling == SamplingParams(max_thinking_tokens=0)
    for control in (QWEN3, PLAIN):
        assert control.applied(asked, TODAY).sampling == SamplingParams()


def test_variables_by_name_win() -> None:
    named = TemplateOptions('{"enable_thinking":true}', thinks=False, thinks_field="thinking")
    assert json.loads(QWEN3.given(named, TODAY)) == {"enable_thinking": True}


def test_a_request_gets_its_variables_and_a_raw_prompt_none() -> None:
    request = ChatRequest("r", "m", (Message("user", "hi"),), SamplingParams())
    assert QWEN3.applied(request, TODAY) == request
    asked = ChatRequest("r", "m", (Message("user", "hi"),), SamplingParams(), template_options=OFF)
    assert QWEN3.applied(asked, TODAY).template_variables == '{"enable_thinking":false}'
    raw = ChatRequest("r", "m", (), SamplingParams(), raw_prompt="x", template_options=OFF)
    assert QWEN3.applied(raw, TODAY) == raw


def test_a_chat_has_one_date_from_its_beginning_to_its_end() -> None:
    dated = TemplateControl(frozenset({"strftime_now", "thinking"}), True)
    asked = ChatRequest("id", "m", (Message("user", "hi"),), SamplingParams())

    def date_of(request: ChatRequest, today: str) -> Any:
        return json.loads(dated.applied(request, today).template_variables)["strftime_now"]

    assert date_of(asked, TODAY) == TODAY
    later = replace(asked, resume=ResumePoint(template_date=TODAY))
    assert date_of(later, "2026-11-30") == TODAY, "the day on which it began"
    chosen = TemplateOptions('{"strftime_now":"2024-07-26"}')
    assert date_of(replace(later, template_options=chosen), "2026-11-30") == "2024-07-26"
    assert not QWEN3.applied(later, TODAY).template_variables, "its template shows no date"
