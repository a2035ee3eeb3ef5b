"""Put the pages of the documentation's site together: `python -m tools.docs_site FOLDER`.

They are the repository's pages, their links rewritten to lead to the same place on the site, and
reference pages. `make docs` has Zensical make HTML of them, as mkdocs.yml says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from services.edge.http.openapi import document

ROOT: Final = Path(__file__).parents[1]
OUTSIDE: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "CHANGELOG.md": "changelog.md",
    "deploy/README.md": "deploy.md",
    "tools/train_draft/README.md": "train-draft.md",
    "outrider/engines/data/README.md": "engines-data.md",
}
"""Pages of the repository outside docs/, and what they are called on the site."""
FOLDERS: Final = {"docs/decisions": "decisions/index.md"}
"""Folders that pages link, and the page of the site that lists what is in them."""
_CODE: Final = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.M | re.S)
_LINK: Final = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()\s]+)\)")
_SOURCE: Final = re.compile(r'(<img [^>]*src=")([^"]+)(")')


def site_path(path: str) -> str | None:
    """Where a file of the repository is on the site, both relative to their roots; None: nowhere.

    For instance `docs/glossary.md` is `glossary.md`, and `README.md` is `index.md`.
    """
    if known := OUTSIDE.get(path) or FOLDERS.get(path):
        return known
    inside = path.startswith("docs/") and (ROOT / path).is_file()
    return path.removeprefix("docs/") if inside else None


def rewritten(markdown: str, source: str, page: str) -> str:
    """A page's text with links as the site needs them.

    `source` is where the text is in the repository, `page` where it is on the site. A link to a
    file that the site does not have is named by its path instead.
    """
    parts = _CODE.split(markdown)

    def shown(text: str) -> str:
        return re.sub("\0(\\d+)\0", lambda match: parts[int(match[1])], text)

    def target(link: str) -> str | None:
        name, hash_sign, anchor = link.partition("#")
        if "://" in link or not name:
            return link
        found = site_path(os.path.normpath(PurePosixPath(source).parent / name))
        if found is None:
            return None
        return os.path.relpath(found, PurePosixPath(page).parent) + hash_sign + anchor

    def link(match: re.Match[str]) -> str:
        picture, text, old = match.groups()
        if new := target(old):
            return f"{picture}[{text}]({new})"
        path = os.path.normpath(PurePosixPath(source).parent / old.partition("#")[0])
        return text if path in shown(text) else f"{text} (`{path}`)"

    def image(match: re.Match[str]) -> str:
        before, old, after = match.groups()
        return before + (target(old) or old) + after

    # A link's text may be code, and code may have what looks like a link.
    text = "".join(f"\0{n}\0" if n % 2 else part for n, part in enumerate(parts))
    return shown(_SOURCE.sub(image, _LINK.sub(link, text)))


def client_reference() -> str:
    """The page of the Python client: what `outrider.client` says and exports."""
    options = "    options:\n      members_order: alphabetical\n"
    return f"# Python client\n\n::: outrider.client\n{options}"


def http_reference() -> str:
    """The page of HTTP routes, by the OpenAPI document that an edge answers with."""
    routes = json.loads(document(""))["paths"]
    lines = [
        "# HTTP routes",
        "",
        "Every edge has them as an OpenAPI document at `/openapi.json`, with the fields of",
        "requests and replies.",
        "",
        "| method | path | what it does |",
        "| --- | --- | --- |",
    ]
    for path, methods in sorted(routes.items()):
        for method, operation in methods.items():
            says = operation.get("summary") or operation.get("description", "")
            lines.append(f"| {method.upper()} | `{path}` | {says} |")
    return "\n".join(lines) + "\n"


def protocol_reference() -> str:
    """The page of gRPC services and messages: the proto files, whose comments explain them."""
    protos = sorted((ROOT / "protos/outrider/v1").glob("*.proto"))
    parts = (
        f"## {proto.name}\n\n```protobuf\n{proto.read_text(encoding='utf-8')}```\n"
        for proto in protos
    )
    return "# Protocols\n\nWhat Outrider's services say to each other over gRPC.\n\n" + "\n".join(
        parts
    )


def folder_page(title: str, pages: list[Path]) -> str:
    """A page that lists others by their headings."""
    listed = (f"- [{heading(page)}]({page.name})" for page in pages)
    return f"# {title}\n\n" + "\n".join(listed) + "\n"


def heading(page: Path) -> str:
    """The first line of a page without its mark."""
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def generated() -> Iterator[tuple[str, str]]:
    """Pages of the site that are in no file: path on the site, text."""
    yield "reference/client.md", client_reference()
    yield "reference/http.md", http_reference()
    yield "reference/protocols.md", protocol_reference()
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"))
    yield "decisions/index.md", folder_page("Decisions", decisions)


def sources() -> Iterator[tuple[str, str]]:
    """Pages of the repository: path in it, path on the site."""
    yield from OUTSIDE.items()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        path = page.relative_to(ROOT).as_posix()
        yield path, path.removeprefix("docs/")


def write(folder: Path) -> None:
    """Put all pages and pictures of the site into a folder, in place of what it had."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.md"))
    texts = [
        (site, rewritten((ROOT / path).read_text(encoding="utf-8"), path, site))
        for path, site in sources()
    ]
    for site, text in (*texts, *generated()):
        page = folder / site
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


def main() -> None:
    """Write the pages into the folder that the command names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
