"""What is printed of a reply."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from outrider.cli.prompting.output import INEXACT, ReplyView, report
from outrider.cli.prompting.painter import Painter
from outrider.client import (
    ChatResult,
    ClientTimings,
    Committed,
    Cost,
    FinishReason,
    Interrupted,
    Provisional,
    Resumed,
    ScoredToken,
    SpeculationStats,
    Timings,
    TokenLogprobs,
    Usage,
)

RESULT = ChatResult(
    text="blue",
    ids=(4, 9),
    finish_reason=FinishReason.STOP,
    usage=Usage(3, 0, 2, 0, 0),
    timings=ClientTimings(12.4, 30.6, 12.4, 80.0, 21.0),
    replica_timings=Timings(1.0, 2.0, 3.0, 4.0),
    edge_timings=Timings(5.0, 0.0, 6.0, 7.0),
    num_retractions=0,
    erased_chars=0,
    region="us-east",
    replica="us-east-0",
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"usage": replace(RESULT.usage, lossy_tokens=1)},
            "2 tokens, 1 lossy, ended by itself · first text after 12 ms · "
            "first final text after 31 ms · 21 tokens/s\n",
        ),
        (  # final when it is first seen
            {"timings": ClientTimings(95.0, 30.6, 30.6, 120.0, 21.0)},
            "2 tokens, ended by itself · first final text after 31 ms · 21 tokens/s\n",
        ),
        (
            {"speculation_stats": SpeculationStats(shown_tokens=7, erased_tokens=2)},
            "2 tokens, 7 shown early, 2 corrected, ended by itself · first text after 12 ms · "
            "first final text after 31 ms · 21 tokens/s\n",
        ),
        (  # stopped before its first token
            {
                "text": "",
                "ids": (),
                "finish_reason": FinishReason.CANCELLED,
                "timings": ClientTimings(None, None, None, 80.0, 0.0),
            },
            "0 tokens, cancelled\n",
        ),
    ],
)
def test_the_text_and_the_figures_go_apart(
    changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report("why?", replace(RESULT, **changes), as_json=False, shown=False)
    out, err = capsys.readouterr()
    assert out == changes.get("text", "blue") + "\n"
    assert err == said


def test_that_a_reply_is_inexact_is_said_in_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report("why?", replace(RESULT, inexact=True), as_json=False, shown=False)
    assert capsys.readouterr().err.splitlines()[1:] == [INEXACT]
    for inexact in (True, False):
        report("why?", replace(RESULT, inexact=inexact), as_json=True, shown=False)
        assert json.loads(capsys.readouterr().out)["inexact"] is inexact


@pytest.mark.parametrize("shown", [True, False])
def test_an_outage_is_told_once_and_is_over_with_final_text(
    shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter((1000.0, 1007.5))
    view = ReplyView(Painter(80), shown=shown, give_up_after_s=120.0, clock=lambda: next(times))
    for event in (
        Committed("so ", (1,), 1),
        Provisional(1, 0, "maybe", 0.6),
        Interrupted("the edge is gone"),
        Resumed("edge", 300.0),
        Provisional(1, 0, "what", 0.6),
        Interrupted("the edge is gone"),
        Resumed("edge", 300.0),
        Committed("far", (2,), 2),
    ):
        view.follow(event)
    out, err = capsys.readouterr()
    assert out == ("so far" if shown else "")
    until = time.strftime("%H:%M:%S", time.localtime(1120.0))
    assert err == (
        f"outrider: interrupted: the edge is gone (trying until {until})\n"
        "outrider: back after 7.5 s\n"
    )
    assert view.transcript.text == "so far"


def test_what_it_costs_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    usage = replace(RESULT.usage, cost=Cost(420_000, "USD"))
    report("why?", replace(RESULT, usage=usage), as_json=False, shown=True)
    assert "· costs 0.00042 USD\n" in capsys.readouterr().err
    report("why?", replace(RESULT, usage=usage), as_json=True, shown=False)
    told = json.loads(capsys.readouterr().out)["usage"]
    assert told["cost"] == {"amount_nanos": 420_000, "currency": "USD"}
    assert told["prompt_tokens"] == 3


def test_json_tells_the_timings_of_client_edge_and_replica(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report("why?", RESULT, as_json=True, shown=False)
    told = json.loads(capsys.readouterr().out)
    assert (told["prompt"], told["text"], told["ids"]) == ("why?", "blue", [4, 9])
    assert told["timings"]["committed_ttft_ms"] == 30.6
    assert told["timings"]["staying_word_ms"] == 12.4
    assert told["speculation_stats"]["shown_tokens"] == 0
    assert told["timings"]["edge"]["ttft_ms"] == 6.0
    assert told["timings"]["replica"]["prefill_ms"] == 2.0


def test_json_tells_log_probabilities_where_they_were_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    half = "é".encode()[:1]
    told = TokenLogprobs(ScoredToken(9, -0.5, b" blue"), (ScoredToken(4, -0.25, half),))
    report("why?", replace(RESULT, logprobs=(None, told)), as_json=True, shown=False)
    assert json.loads(capsys.readouterr().out)["logprobs"] == [
        None,
        {
            "id": 9,
            "token": " blue",
            "bytes": list(b" blue"),
            "logprob": -0.5,
            "top_logprobs": [
                {"id": 4, "token": "\N{REPLACEMENT CHARACTER}", "bytes": [195], "logprob": -0.25}
            ],
        },
    ]
    report("why?", RESULT, as_json=True, shown=False)
    assert "logprobs" not in json.loads(capsys.readouterr().out)
