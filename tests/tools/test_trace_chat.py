"""A chat is followed through all services, and what happens beside it is left out."""

from __future__ import annotations

from collections import Counter

from tools.trace_chat import Function, Stretch, Trace, trace, usual


def stretch(*names: str) -> Stretch:
    return Stretch(Counter(Function("edge", f"services/{name}.py", name) for name in names))


def test_what_is_in_more_than_half_of_the_stretches_counts_in_the_order_of_entry() -> None:
    stretches = [stretch("a", "b", "b", "c"), stretch("a", "c"), stretch("tick", "a", "c")]
    assert [it.name for it in usual(stretches)] == ["a", "c"]
    figures = Trace(stretches, stretches[:1]).figures()
    assert (figures["modules_per_open"], figures["calls_per_open"]) == (2, 2)
    assert (figures["modules_per_commit"], figures["calls_per_commit"]) == (3, 4)


async def test_a_chat_is_followed_through_every_service() -> None:
    seen = await trace()
    opened, committed = usual(seen.opens), usual(seen.commits)
    for functions in (opened, committed):
        assert {it.service for it in functions} >= {"edge", "router", "inference"}
        assert not any("outrider/client/" in it.module for it in functions)
    modules = [it.module for it in opened]
    doors = ("edge/chat", "router/service", "inference/service")
    places = [modules.index(f"services/{door}.py") for door in doors]
    assert places == sorted(places)
