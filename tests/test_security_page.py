"""docs/security.md says nothing of what Outrider does without naming a test that holds it, and the
defaults of its limits are those of the settings."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path
from typing import Final

import pytest

from services.edge.config import EdgeConfig
from services.router.config import RouterConfig

PAGE: Final = (Path(__file__).parents[1] / "docs" / "security.md").read_text("utf-8")
TEXT, _, NOTES = PAGE.partition("\n## Tests\n")
SECTIONS: Final = ("Who can reach what", "What is promised", "What is not promised", "Limits")
"""Those that make promises."""
NO_CLAIMS: Final = (
    "Settings are in the table `[edge]`",
    "But processors are shared: in the",
    "A replica with a certificate is believed",
    "**Telemetry.**",
    "None leaves by itself.",
    "- **Operators of the mesh see texts.**",
    "Edges, routers (of clients that send text), tokenizers and replicas have them",
    "- **Timing across groups under load.**",
    "Nine of 22 attacks",
    "Only within a process single words",
    "- **Lengths on the wire.**",
    "An observer sees how long",
    "Pieces of several tokens blur this",
    "- **Leaked keys.**",
    "- **A replica full of one client's chats.**",
    "Lower `quic.max_chats_per_client`",
    "- **Denial of service by bandwidth.**",
    "A link that is full is full.",
    "- **The model.**",
    "What it says is not filtered",
    "**Between clients.**",
    "**What is typed.**",
    "**Against one client.**",
    "**Work in turns.**",
    "**Against what a model writes, in the chat page.**",
    "**Against who is not there.**",
    "**Against the network.**",
    "**Against another model's words.**",
    "**Against files and peers' bytes.**",
    "**Against stalls of the host.**",
    "**Against false edges.**",
)
"""How sentences begin that say nothing of what Outrider does: names of paragraphs, what others see,
figures, advice. A sentence that is none of these has a mark."""
_MARK: Final = re.compile(r"\[\^([a-z0-9-]+)\]")
_SENTENCE_END: Final = re.compile(
    r"(?<=[a-z)`*\]0-9]\.)((?:\[\^[a-z0-9-]+\])*) (?=[A-Z`*])|(?<=\.\*\*) "
)
_CODE: Final = re.compile(r"`([^`\n]+)`")
UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "s": 1, "ms": 1}


def section(name: str) -> str:
    return TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of tables, without their heads."""
    lines = text.splitlines()
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("| ---")}
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for number, line in enumerate(lines)
        if line.startswith("|") and number not in heads and not line.startswith("| ---")
    ]


def sentences(text: str) -> list[str]:
    """Those of paragraphs and of items of lists, each with the marks behind it."""
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    blocks = re.split(r"\n\s*\n|\n(?=- )", "\n".join(prose))
    found = []
    for block in blocks:
        whole = " ".join(block.split())
        found += [part.strip() for part in _SENTENCE_END.sub(r"\1\n", whole).split("\n")]
    return [sentence for sentence in found if sentence]


@pytest.mark.parametrize("name", SECTIONS)
def test_every_claim_has_a_mark(name: str) -> None:
    claims = [" | ".join(row) for row in rows(section(name))] + sentences(section(name))
    assert claims
    bare = [it for it in claims if not _MARK.search(it)]
    assert [it for it in bare if not it.startswith(NO_CLAIMS)] == []


def test_what_is_no_claim_is_there() -> None:
    said = [it for name in SECTIONS for it in sentences(section(name)) if not _MARK.search(it)]
    assert [it for it in NO_CLAIMS if not any(one.startswith(it) for one in said)] == []


def test_every_mark_has_its_tests_and_all_are_used() -> None:
    noted = re.findall(r"^\[\^([a-z0-9-]+)\]: `tests/\S+\.py::test_", NOTES, re.MULTILINE)
    assert len(noted) == len(set(noted)) == len(re.findall(r"^\[\^", NOTES, re.MULTILINE))
    assert noted == list(dict.fromkeys(_MARK.findall(TEXT)))


def spelled(value: object) -> set[str]:
    """How a page may write a value."""
    if isinstance(value, tuple):
        return set() if value else {"none"}
    if not isinstance(value, int | float):
        return {str(value)}
    sizes = (f"{value / size:g} {unit}" for unit, size in UNITS.items() if value % size == 0)
    return {f"{value:,}", f"{value:g}", *sizes}


def test_defaults_are_those_of_the_settings() -> None:
    configs = {"router": RouterConfig()}
    edge = EdgeConfig()
    computed = {"quic.max_resident_bytes", "max_context_tokens", "http.allowed_hosts"}
    looked_at = 0
    for _, settings, default in rows(section("Limits")):
        told = set(re.split(r"; |, |/s| at once|one in ", default)) | set(
            re.split("; |, ", default)
        )
        for name in _CODE.findall(settings):
            if ("." not in name and not hasattr(edge, name)) or " " in name or "[" in name:
                continue
            role, _, path = name.partition(".")
            config, keys = (configs[role], path) if role in configs else (edge, name)
            value = reduce(getattr, keys.split("."), config)
            looked_at += 1
            assert name in computed or spelled(value) & told, (name, value, default)
    assert looked_at >= 60
