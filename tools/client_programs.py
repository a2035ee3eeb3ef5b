"""Lets a program that people use do one small task with a mesh of this machine, and says what it
asked for and what it was answered:

    python -m tools.client_programs codex|claude|opencode|aider|open-webui [--model FILE]

The program comes from npm or PyPI, once, into .tools/programs. The mesh serves a coder model of
0.5B parameters, which is too small to do such work well: what is looked at is the conversation.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from bench.harness.larger_models import CODER_05B, have
from bench.harness.local_mesh import local_mesh
from outrider.cli.local import development_key

_ROOT: Final = Path(__file__).parents[1]
_PLACE: Final = _ROOT / ".tools" / "programs"
_NODE: Final = _ROOT / ".tools" / "clients" / "python" / "bin"
TASK: Final = "Write a file hello.py that prints hello."
MAX_CONTEXT_TOKENS: Final = 32_768
_TIMEOUT_S: Final = 900
_PAGE_PORT: Final = 18_998
"""Of Open WebUI; the edge must know the page's origin when it starts."""
_SHOWN_CHARS: Final = 2_000


@dataclass(slots=True)
class Talk:
    """What went over the wire."""

    requests: Counter[str] = field(default_factory=Counter)
    """By method, path and status."""
    errors: list[str] = field(default_factory=list)
    """Bodies of refusals."""
    fields: dict[str, set[str]] = field(default_factory=dict)
    """Of the bodies, by path."""
    tools: dict[str, set[str]] = field(default_factory=dict)
    """Types of tools, by path."""
    notes: set[str] = field(default_factory=set)
    """Headers in which the edge tells of what it passed over."""

    def asked(self, path: str, body: bytes) -> None:
        """Note a request's body."""
        try:
            said = json.loads(body or b"{}")
        except ValueError:
            return
        if isinstance(said, dict):
            self.fields.setdefault(path, set()).update(said)
            tools = said.get("tools") or ()
            kinds = {str(it.get("type", "function")) for it in tools if isinstance(it, dict)}
            self.tools.setdefault(path, set()).update(kinds)


def _recorder(host: str, port: int, talk: Talk) -> type[BaseHTTPRequestHandler]:
    """Hands requests on to the edge, and notes them."""

    class Recorder(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.partition("?")[0]
            talk.asked(path, body)
            edge = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
            skipped = ("host", "connection", "accept-encoding")
            headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
            edge.request(self.command, self.path, body, headers)
            answer = edge.getresponse()
            page = " from a page" if "origin" in self.headers else ""
            talk.requests[f"{self.command} {path} {answer.status}{page}"] += 1
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower().startswith("x-outrider"):
                    talk.notes.add(f"{name}: {value}")
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            told = b""
            # A program may leave before the end.
            with contextlib.suppress(ConnectionError):
                while piece := answer.read1():
                    told += piece[:_SHOWN_CHARS]
                    self.wfile.write(piece)
                    self.wfile.flush()
            if answer.status >= 400:
                talk.errors.append(told.decode(errors="replace")[:_SHOWN_CHARS])
            self.close_connection = True

        do_GET = do_POST = do_HEAD = do_OPTIONS = do_DELETE = _pass_on

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    return Recorder


@dataclass(frozen=True, slots=True)
class Program:
    """How to have one, and how to have it do the task."""

    package: str
    prepare: Callable[[Path, str, str, str], Mapping[str, str]]
    """Writes its settings into the home folder, for an address, a key and a model; gives its
    environment."""
    command: Callable[[str], list[str]]
    """Its command line, for a model."""
    is_python: bool = False
    requirements: str = ""
    """Of a Python package: a file in it that is installed in place of what it depends on."""
    beside: tuple[str, ...] = ()
    """Python packages that its command needs."""
    settings: tuple[str, ...] = ()
    """Of the mesh."""


def _codex(home: Path, url: str, key: str, model: str) -> Mapping[str, str]:
    lines = [
        f'model = "{model}"',
        'model_provider = "outrider"',
        f"model_context_window = {MAX_CONTEXT_TOKENS}",
        "[model_providers.outrider]",
        'name = "Outrider"',
        f'base_url = "{url}/v1"',
        'env_key = "OUTRIDER_KEY"',
        'wire_api = "responses"',
    ]
    folder = home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text("\n".join(lines), "utf-8")
    return {"CODEX_HOME": str(folder), "OUTRIDER_KEY": key}


def _claude(home: Path, url: str, key: str, model: str) -> Mapping[str, str]:
    names = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL")
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "256",
        **dict.fromkeys(names, model),
    }


def _opencode(home: Path, url: str, key: str, model: str) -> Mapping[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": key},
        "models": {model: {"limit": {"context": MAX_CONTEXT_TOKENS, "output": 256}}},
    }
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text(json.dumps({"provider": {"outrider": provider}}))
    return {}


def _aider(home: Path, url: str, key: str, model: str) -> Mapping[str, str]:
    return {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": key}


def _open_webui(home: Path, url: str, key: str, model: str) -> Mapping[str, str]:
    return {
        "OPENAI_API_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "PORT": str(_PAGE_PORT),
        "DATA_DIR": str(home),
        "PYTHONPATH": str(_ROOT),
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "of a test",
        "OFFLINE_MODE": "true",
        "ENABLE_OLLAMA_API": "false",
        "ENABLE_DIRECT_CONNECTIONS": "true",
        # What requirements-slim.txt goes with.
        "USE_SLIM_DOCKER": "true",
    }


PROGRAMS: Final = {
    "codex": Program(
        "@openai/codex",
        _codex,
        lambda model: ["codex", "exec", "--skip-git-repo-check", "--sandbox", "read-only", TASK],
    ),
    "claude": Program(
        "@anthropic-ai/claude-code",
        _claude,
        lambda model: ["claude", "-p", TASK, "--model", model, "--max-turns", "3"],
    ),
    "opencode": Program(
        "opencode-ai", _opencode, lambda model: ["opencode", "run", "-m", f"outrider/{model}", TASK]
    ),
    "aider": Program(
        "aider-chat",
        _aider,
        lambda model: [
            *("aider", "--model", f"openai/{model}", "--message", TASK, "--yes-always", "--no-git"),
            *("--no-show-model-warnings", "--no-check-update", "--analytics-disable", "hello.py"),
        ],
        is_python=True,
    ),
    "open-webui": Program(
        "open-webui",
        _open_webui,
        lambda model: ["python", "-m", "tools.open_webui", TASK],
        is_python=True,
        requirements="requirements-slim.txt",
        beside=("playwright",),
        settings=(f"edge.http.allowed_origins=http://127.0.0.1:{_PAGE_PORT}",),
    ),
}


def installed(name: str) -> Path:
    """The folder with the program's command."""
    program, place = PROGRAMS[name], _PLACE / name
    done = place / "installed"
    if not done.exists():
        print(f"installing {program.package} into {place}", file=sys.stderr)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if program.is_python:
            _install_python(program, place)
        else:
            (place / "package.json").write_text('{"private": true}')
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", program.package]
            subprocess.run(command, cwd=place, env=_with_path(_NODE), check=True)
        done.touch()
    return place / ("bin" if program.is_python else "node_modules/.bin")


def _install_python(program: Program, place: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    install = (str(place / "bin/pip"), "install", "-q")
    if not program.requirements:
        subprocess.run((*install, program.package, *program.beside), check=True)
        return
    subprocess.run((*install, "--no-deps", program.package), check=True)
    file = next(place.glob(f"lib/*/site-packages/{program.requirements}"))
    subprocess.run((*install, "-r", str(file), *program.beside), check=True)


def _with_path(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def main() -> int:
    """Exits with 1 if a request was refused."""
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    flags.add_argument("program", choices=PROGRAMS)
    flags.add_argument("--model", help="a GGUF file in place of the coder model")
    asked = flags.parse_args()
    program, talk = PROGRAMS[asked.program], Talk()
    commands = installed(asked.program)
    file = Path(asked.model) if asked.model else have(CODER_05B)
    settings = (
        f"edge.max_context_tokens={MAX_CONTEXT_TOKENS}",
        f"inference.max_context_tokens={MAX_CONTEXT_TOKENS}",
        "edge.drafter.model=none",
        "edge.http.default_max_tokens=256",
        *program.settings,
    )
    with (
        tempfile.TemporaryDirectory() as scratch,
        local_mesh(
            regions="here", settings=settings, model=str(file), http=True, threads=2
        ) as mesh,
    ):
        home, work = Path(scratch) / "home", Path(scratch) / "work"
        home.mkdir()
        work.mkdir()
        port = mesh.state.service("edge")["http_port"]
        server = ThreadingHTTPServer(("127.0.0.1", 0), _recorder(mesh.state.host, port, talk))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        key = development_key.read(mesh.state_dir)
        environment = {
            **_with_path(_NODE),
            "HOME": str(home),
            **program.prepare(home, url, key, file.stem),
        }
        environment["PATH"] = f"{commands}:{environment['PATH']}"
        try:
            ran = subprocess.run(
                program.command(file.stem),
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_TIMEOUT_S,
            )
            said, code = ran.stdout, f"exit {ran.returncode}"
        except subprocess.TimeoutExpired as stopped:
            said = (stopped.stdout or b"").decode(errors="replace")
            code = f"stopped after {_TIMEOUT_S} s"
        server.shutdown()
        made = sorted(str(it.relative_to(work)) for it in work.rglob("*") if it.is_file())
    print(f"{asked.program}: {code}; files: {', '.join(made) or 'none'}\n{said[-_SHOWN_CHARS:]}\n")
    for request, count in sorted(talk.requests.items()):
        print(f"{count:4} {request}")
    for path, names in sorted(talk.fields.items()):
        print(f"{path}: fields {', '.join(sorted(names))}")
        print(f"{path}: tools of types {', '.join(sorted(talk.tools[path])) or 'none'}")
    for note in sorted(talk.notes):
        print(note)
    for error in talk.errors:
        print(f"refused: {error}")
    return int(bool(talk.errors))


if __name__ == "__main__":
    sys.exit(main())
