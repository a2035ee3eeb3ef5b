"""The site of `make docs`: every page of the repository is on it, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.test_docs import PAGES, ROOT
from tools import docs_site

_CONFIG: Final = "mkdocs.yml"


@pytest.mark.timeout(300)
def test_it_is_built_without_a_complaint(tmp_path: Path) -> None:
    """As `make docs` does, in another folder, with a page that must be told apart from it."""
    docs_site.write(tmp_path / "pages")
    settings = (ROOT / _CONFIG).read_text(encoding="utf-8")
    settings = settings.replace(".site/pages", "pages").replace(".site/html", "html")
    settings = settings.replace("paths: [.]", f"paths: [{ROOT}]")
    (tmp_path / _CONFIG).write_text(settings, encoding="utf-8")
    done = _built(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {
        page.relative_to(tmp_path / "html").with_suffix(".md").as_posix()
        for page in (tmp_path / "html").rglob("*.html")
    }
    assert pages >= {site for _, site in docs_site.sources()}
    chat = (tmp_path / "html/reference/client.html").read_text(encoding="utf-8")
    assert 'id="outrider.client.Client.chat"' in chat
    with (tmp_path / "pages/glossary.md").open("a") as page:
        page.write("\n[gone](architecture.md#no-such-heading)\n")
    assert _built(tmp_path).returncode, "a link that leads nowhere fails it"


def _built(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "zensical"
    command = (str(program), "build", "--strict")
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_page_is_on_it() -> None:
    there = {path for path, _ in docs_site.sources()}
    assert there >= {page.relative_to(ROOT).as_posix() for page in PAGES}


def test_the_navigation_names_pages_that_are_there_once_each() -> None:
    text = (ROOT / _CONFIG).read_text(encoding="utf-8")
    nav = yaml.safe_load("nav:\n" + text.partition("\nnav:\n")[2])["nav"]
    named = re.findall(r"[\w./-]+\.md", str(nav))
    pages = {site for _, site in docs_site.sources()} | {site for site, _ in docs_site.generated()}
    assert len(named) == len(set(named))
    decisions = {page for page in pages if re.match(r"decisions/\d", page)}
    assert set(named) == pages - decisions, "decisions/index.md lists the others"


def test_links_lead_to_the_same_place() -> None:
    old = (
        "[a](docs/glossary.md#draft) [b](docs/decisions) ![c](docs/quick-start.svg) [d](#here)\n"
        "[e](https://example.com/x) [f](services/edge/app.py) [`pyproject.toml`](pyproject.toml)\n"
        "`[g](docs/glossary.md)` [`h`](CONTRIBUTING.md)\n"
        "```md\n[i](docs/glossary.md)\n```\n"
    )
    new = (
        "[a](glossary.md#draft) [b](decisions/index.md) ![c](quick-start.svg) [d](#here)\n"
        "[e](https://example.com/x) f (`services/edge/app.py`) `pyproject.toml`\n"
        "`[g](docs/glossary.md)` [`h`](contributing.md)\n"
        "```md\n[i](docs/glossary.md)\n```\n"
    )
    assert docs_site.rewritten(old, "README.md", "index.md") == new
    guide = "[x](../../deploy/README.md#images) [y](http.md) [z](../../CONTRIBUTING.md)"
    assert docs_site.rewritten(guide, "docs/guides/a.md", "guides/a.md") == (
        "[x](../deploy.md#images) [y](http.md) [z](../contributing.md)"
    )
