"""Links between the pages of this repository lead somewhere."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")))
_LINK: Final = re.compile(r"\[[^\[\]]*\]\(([^()\s]+)\)")
_CODE: Final = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Of all headings; a repeated one gets a number."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def broken(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there."""
    found = []
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken(page)


def test_the_readme_is_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page: `x`\n## Same\n## Same\n[a](#a-page-x) [b](#same-1) [c](page.md) [d](#same-2)\n"
        "[e](other.md#x) [f](https://example.com/x) `[g](gone.md)`\n"
        "```\n# code\n[h](gone.md)\n```\n"
        "[i](#code)\n",
        encoding="utf-8",
    )
    assert broken(page) == ["#same-2", "other.md#x", "#code"]
