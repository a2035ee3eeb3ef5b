"""The code blocks of README and guides do what they say: each runs as it stands, by its kind,
against a mesh of real processes.

A block that needs something that no test has says so in a comment before it, `<!-- not run: WHY
-->`, with one of a few reasons. It is read all the same: its commands have to exist with their
flags, and its program has to compile.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from playwright._impl._driver import compute_driver_executable
from typer.main import get_command

from bench.harness.local_mesh import LocalMesh
from outrider.cli.local import development_key
from outrider.cli.main import app_for
from outrider.models.store import default_root
from tests.cli.invoking import invoke
from tests.e2e.router import Router

pytestmark = pytest.mark.e2e

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md")))
REASONS: Final = frozenset(
    {
        "a GPU",
        "a cluster",
        "a container engine",
        "a curl with HTTP/3",
        "another machine",
        "another model",
        "another package",
        "it installs packages",
        "it runs until it is stopped",
        "it takes minutes",
    }
)
"""Why a block may not run."""
_NOT_RUN: Final = re.compile(r"<!-- not run: (.*) -->")
_SHELL: Final = """
set -euo pipefail
outrider() {
    case "$1" in
        # The test has a mesh that is up, and doctor judges the machine that it runs on.
        up | down | doctor) ;;
        chat | reference) "$PYTHON" -m outrider.cli.main "$1" --max-tokens 16 "${@:2}" ;;
        *) "$PYTHON" -m outrider.cli.main "$@" ;;
    esac
}
curl() { command curl --silent --show-error --fail-with-body "$@"; }
git() { echo "+ a line of a change"; }
pip() { :; }
"""
_FRAGMENT: Final = """
import asyncio

from outrider import client
from outrider.sampling.grammar import Grammar, GrammarKind

SamplingParams = client.SamplingParams
question = [client.Message("user", "Why is the sky blue?")]
draw = print


async def main():
    async with client.connect("127.0.0.1", 4433, ca="~/.local/state/outrider/tls/cert.pem") as mesh:
        sampling = SamplingParams(max_tokens=8, num_logprobs=3)
        async with mesh.chat(question, sampling=sampling) as chat:
{block}


asyncio.run(main())
"""
"""What stands around a block that is a part of a program."""


@dataclass(frozen=True, slots=True)
class Block:
    """One of a page."""

    page: Path
    line: int
    """Of the page, from 1 on, where it begins."""
    kind: str
    text: str
    reason: str
    """Why it is not run; "": it is."""

    def __str__(self) -> str:
        return f"{self.page.stem}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """All of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    begin = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if begin is None:
            begin = number
            continue
        found = _NOT_RUN.fullmatch(lines[begin - 1]) if begin else None
        kind = lines[begin].strip().removeprefix("```")
        text = textwrap.dedent("\n".join(lines[begin + 1 : number]))
        yield Block(page, begin + 1, kind, text + "\n", found[1] if found else "")
        begin = None


BLOCKS: Final = tuple(block for page in PAGES for block in blocks_of(page))


def of_kind(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", [it for it in BLOCKS if it.kind == kind], ids=str)


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who tries the guides: with a home of their own, a mesh that is up there, and the
    files that the guides speak of."""

    home: Path
    mesh: LocalMesh
    key: str

    def run(self, *command: str, given: str = "") -> str:
        """What a command prints. It has to succeed."""
        environment = {
            "HOME": str(self.home),
            "KEY": self.key,
            "OUTRIDER_MODEL_STORE": str(default_root()),
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            command,
            cwd=self.home,
            env=environment,
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def here(self, text: str) -> str:
        """A block's text with the ports and the key of the mesh."""
        (http,) = {row["http_port"] for row in self.mesh.services("edge")}
        text = text.replace("4433", str(self.mesh.edge[1])).replace("8080", str(http))
        return text.replace('api_key="..."', f'api_key="{self.key}"')


@pytest.fixture(scope="module")
def reader(mesh: LocalMesh, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    home = tmp_path_factory.mktemp("home")
    state = home / ".local" / "state"
    state.mkdir(parents=True)
    (state / "outrider").symlink_to(mesh.state_dir)
    (home / ".venv").symlink_to(sys.prefix)
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}}
    files = {
        "books/a.txt": "Rivers flow to the sea.\n",
        "corpus/b.txt": "The sky is blue.\nThe sea is deep.\n",
        "corpus/c/d.jsonl": '{"text": "Rain falls."}\n',
        "draft.md": "The skye is blue.\n",
        "lines.txt": "one text\nanother\n",
        "notes.jsonl": '{"text": "Snow melts."}\n',
        "prompts.jsonl": '"Why is the sky blue?"\n"What is rain?"\n',
        "river.json": json.dumps({**schema, "required": ["name"]}),
        "sentence.lark": 'start: "Rain falls." | "Snow melts."\n',
    }
    for name, text in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (home / "corpus/c/e.jsonl.gz").write_bytes(gzip.compress(b'{"text": "Wind blows."}\n'))
    return Reader(home, mesh, development_key.read(mesh.state_dir))


def check_command(words: list[str]) -> None:
    """Raises a UsageError of typer's for a command or a flag that there is not."""
    command: Any = get_command(app_for(words))
    context = None
    while (inner := getattr(command, "commands", None)) is not None:
        if words[0].startswith("--"):
            return  # what the group itself takes
        command, words = inner[words[0]], words[1:]
    command.make_context("outrider", words, parent=context)


def outrider_commands(text: str) -> Iterator[list[str]]:
    """The words behind `outrider`, for each time that a script calls it."""
    lines = text.replace("\\\n", " ").splitlines()
    for line in (it for it in lines if "outrider " in it):
        words = shlex.split(line, comments=True)
        for at, word in enumerate(words):
            if word == "outrider" and (not at or words[at - 1] == "|" or "=" in words[at - 1]):
                rest = words[at + 1 :]
                ends = (number for number, it in enumerate(rest) if it in ("|", "<"))
                yield rest[: next(ends, None)]


def test_every_block_has_a_kind_and_every_exemption_a_reason() -> None:
    kinds = {"sh", "python", "js", "toml", "json", "nginx", "ini", "text", "mermaid"}
    assert {str(it): it.kind for it in BLOCKS if it.kind not in kinds} == {}
    assert {str(it): it.reason for it in BLOCKS if it.reason not in REASONS | {""}} == {}
    assert REASONS == {it.reason for it in BLOCKS if it.reason}, "no reason is left over"
    marked = sum(page.read_text(encoding="utf-8").count("<!-- not run:") for page in PAGES)
    assert marked == sum(bool(it.reason) for it in BLOCKS), "a marker stands before no block"


@of_kind("sh")
def test_commands_and_flags_are_there(block: Block) -> None:
    for words in outrider_commands(block.text):
        check_command(words)


@of_kind("python")
def test_programs_compile(block: Block) -> None:
    compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@of_kind("js")
def test_programs_of_pages_compile(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "page.mjs"
    file.write_text(block.text, encoding="utf-8")
    node, _ = compute_driver_executable()
    done = subprocess.run((node, "--check", file), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@of_kind("toml")
def test_configuration_is_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text(block.text, encoding="utf-8")
    (tmp_path / "my-model.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    done = invoke(["config", "validate", str(file)])
    assert done.exit_code == 0, done.exception
    assert tomllib.loads(block.text)


@of_kind("json")
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.text)


@of_kind("sh")
@pytest.mark.model
def test_scripts_run(block: Block, reader: Reader) -> None:
    if block.reason:
        reader.run("bash", "-n", "-c", block.text)
        return
    reader.run("bash", "-c", _SHELL + reader.here(block.text), given="Say hi.\n")


@of_kind("python")
@pytest.mark.model
def test_programs_run(block: Block, reader: Reader) -> None:
    if block.reason:
        return
    text = block.text
    if not re.search(r"^(import|from) ", text, re.M):
        text = _FRAGMENT.format(block=textwrap.indent(text, " " * 12))
    printed = reader.run(sys.executable, "-c", reader.here(text))
    assert printed.strip() or "print(" not in block.text


@pytest.mark.model
async def test_whoever_followed_the_guides_left_every_replica_in_service(reader: Reader) -> None:
    async with Router(reader.mesh) as router:
        await router.is_whole()
