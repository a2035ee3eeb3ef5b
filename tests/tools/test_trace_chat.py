"""A chat is followed through all services, what happens beside it is left out, and the life of a
request in docs/architecture.md is what is seen."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from tools.trace_chat import (
    RECORDED,
    SERVICES,
    Function,
    Stretch,
    Stretches,
    Trace,
    not_recorded,
    trace,
    traces,
)

PAGE: Final = Path(__file__).parents[2] / "docs" / "architecture.md"
_STEP: Final = re.compile(r"^\d+\. \*\*(\w+)\*\*: (Meanwhile, )?(.*?)(?=^\d|^\*\*|\Z)", re.M | re.S)
_MODULE: Final = re.compile(r"`((?:services|outrider)/[\w/]+\.py)`")


@dataclass(frozen=True, slots=True)
class Step:
    """A numbered step of the page."""

    service: str
    is_meanwhile: bool
    """Whether it begins with "Meanwhile": it comes after the step before it has begun, and the next
    one does not wait for it."""
    modules: tuple[str, ...]


def steps_of(page: str, heading: str) -> list[Step]:
    """The steps below a heading of the third level."""
    section = page.split(f"\n### {heading}\n", 1)[1].split("\n#", 1)[0]
    return [
        Step(service, bool(meanwhile), tuple(_MODULE.findall(text)))
        for service, meanwhile, text in _STEP.findall(section)
    ]


def first_not_entered(steps: Sequence[Step], functions: Sequence[Function]) -> str:
    """The first module of the steps that is not entered when its turn comes; empty if all are. A
    module may be entered many times: the steps have to be a subsequence of all entries."""
    begin = place = 0
    for step in steps:
        after = begin if step.is_meanwhile else place
        for module in step.modules:
            entered = ((it.service, it.module) for it in functions[after:])
            found = next((n for n, it in enumerate(entered) if it == (step.service, module)), None)
            if found is None:
                return f"{step.service}: {module}"
            after += found
        if not step.is_meanwhile:
            begin, place = place, after
    return ""


def stretch(*names: str) -> Stretch:
    return Stretch(Counter(Function("edge", f"services/{name}.py", name) for name in names))


@pytest.fixture(scope="module")
def seen() -> Trace:
    """Followed once."""
    return asyncio.run(trace())


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


def test_a_chat_is_followed_through_every_service(seen: Trace) -> None:
    opened, committed = seen.opens.functions(), seen.commits.functions()
    for functions in (opened, committed):
        assert {it.service for it in functions} >= {"edge", "router", "inference"}
        assert not any("outrider/client/" in it.module for it in functions)
    # What is left of the chat before may pass first, on a machine that is busy.
    doors = (("edge", "chat/chat"), ("router", "service"), ("inference", "service"))
    steps = [Step(name, False, (f"services/{name}/{door}.py",)) for name, door in doors]
    assert not first_not_entered(steps, opened), "not through the services one after the other"


def test_a_chat_enters_no_module_that_is_not_recorded(
    seen: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not not_recorded(chain([seen], traces())), (
        "python -m tools.trace_chat --check says what to do"
    )
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    assert all((PAGE.parents[1] / it.split()[1]).is_file() for it in lines), "gone: record anew"
    fewer = tmp_path / "modules"
    fewer.write_text("\n".join(it for it in lines if not it.endswith("/edge/chat/chat.py")))
    monkeypatch.setattr("tools.trace_chat.RECORDED", fewer)
    found = [it for it in not_recorded([seen]) if it.endswith("/edge/chat/chat.py")]
    assert {it.split()[0] for it in found} == {"open", "commit"}


def test_steps_are_read_and_compared_in_order() -> None:
    page = (
        "# Page\n### Life\n1. **edge**: First `services/a.py`,\n   then `services/b.py`.\n"
        "2. **edge**: Meanwhile, `services/d.py`.\n3. **edge**: Then `services/c.py`.\n"
        "\n**The end.** `services/x.py`\n### Other\n1. **edge**: `services/y.py`\n"
    )
    steps = steps_of(page, "Life")
    assert steps == [
        Step("edge", False, ("services/a.py", "services/b.py")),
        Step("edge", True, ("services/d.py",)),
        Step("edge", False, ("services/c.py",)),
    ]

    def entered(names: str) -> list[Function]:
        return list(stretch(*names).calls)

    assert not first_not_entered(steps, entered("abdc"))
    assert not first_not_entered(steps, entered("abcd"))
    assert first_not_entered(steps, entered("abd")) == "edge: services/c.py"
    assert first_not_entered(steps, entered("bdac")) == "edge: services/b.py"


@pytest.mark.parametrize("heading", ["Opening a chat", "One commit"])
def test_the_life_of_a_request_names_what_is_entered_in_this_order(
    seen: Trace, heading: str
) -> None:
    steps = steps_of(PAGE.read_text(encoding="utf-8"), heading)
    assert {step.service for step in steps} == set(SERVICES), "a step that was not read?"
    assert all(step.modules for step in steps)
    stretches = seen.opens if heading == "Opening a chat" else seen.commits
    assert not first_not_entered(steps, stretches.functions()), "not entered, or later than it says"


def test_every_path_on_the_page_exists() -> None:
    paths = re.findall(r"`([\w./]+/[\w./]*)`", PAGE.read_text(encoding="utf-8"))
    root = PAGE.parents[1]
    folder = re.compile(r"^(services|outrider|protos|docs|deploy|bench|tools|tests)/")
    assert not [it for it in paths if folder.match(it) and not (root / it).exists()]
