"""A chat is followed through all services, and what happens beside it is left out."""

from __future__ import annotations

from collections import Counter

from tools.trace_chat import Function, Stretch, Stretches, Trace, trace


def stretch(*names: str) -> Stretch:
    return Stretch(Counter(Function("edge", f"services/{name}.py", name) for name in names))


def test_what_is_in_more_than_half_of_the_stretches_counts_in_the_order_of_entry() -> None:
    stretches = [stretch("a", "b", "b", "c"), stretch("a", "c"), stretch("tick", "a", "c")]
    opens, commits = Stretches(stretches, []), Stretches(stretches[:1], [])
    assert [it.name for it in opens.functions()] == ["a", "c"]
    figures = Trace(opens, commits).figures()
    assert (figures["modules_per_open"], figures["calls_per_open"]) == (2, 2)
    assert (figures["modules_per_commit"], figures["calls_per_commit"]) == (3, 4)


def test_what_an_idle_mesh_does_as_often_is_left_out() -> None:
    chat = [stretch("tick", "a", "clock", "clock"), stretch("tick", "tick", "a", "clock", "clock")]
    idle = [stretch("tick", "clock"), stretch("tick", "tick", "clock"), stretch("tick", "tick")]
    seen = Stretches(chat, idle)
    functions = seen.functions()
    assert [it.name for it in functions] == ["a", "clock"]
    assert seen.num_calls(functions) == 3 - 1


async def test_a_chat_is_followed_through_every_service() -> None:
    seen = await trace()
    opened, committed = seen.opens.functions(), seen.commits.functions()
    for functions in (opened, committed):
        assert {it.service for it in functions} >= {"edge", "router", "inference"}
        assert not any("outrider/client/" in it.module for it in functions)
    modules = [it.module for it in opened]
    doors = ("edge/chat", "router/service", "inference/service")
    places = [modules.index(f"services/{door}.py") for door in doors]
    assert places == sorted(places)
