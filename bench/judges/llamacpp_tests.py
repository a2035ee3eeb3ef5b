"""The tests of llama.cpp's server that ask standard things, run against us as they are.

They come with the source distribution that `bench.peers.llamacpp` builds the server from, and stay
in `.bench-venvs`. `programs/llamacpp_plugin.py` points them here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.harness.provenance import ROOT
from bench.judges.environments import HOME, environment
from bench.judges.report import NO_TOOLS, Finding, Report, expecting, keep
from bench.judges.target import Target
from bench.peers.llamacpp import SOURCE, VERSION

_TESTS: Final = HOME / "judge-llamacpp-tests" / "tests"
_PART: Final = "vendor/llama.cpp/tools/server/tests/"
_PACKAGES: Final = ("pytest", "filelock", "numpy", "openai", "requests", "wget", "aiohttp")
_CHATS: Final = "unit/test_chat_completion.py"
_SELECTED: Final = (
    f"{_CHATS}::test_completion_with_response_format",
    f"{_CHATS}::test_invalid_chat_completion_req",
    f"{_CHATS}::test_chat_completions_multiple_choices",
    f"{_CHATS}::test_chat_completion_with_openai_library",
    f"{_CHATS}::test_logprobs",
    f"{_CHATS}::test_logprobs_stream",
    "unit/test_completion.py::test_completion_with_openai_library",
    "unit/test_completion.py::test_completion_stream_with_openai_library",
    "unit/test_compat_oai_responses.py::test_responses_with_openai_library",
    "unit/test_compat_oai_responses.py::test_responses_stream_with_openai_library",
    "unit/test_compat_anthropic.py",
    "unit/test_security.py::test_incorrect_api_key",
)
_LEFT_OUT: Final = (
    # Models that see, or that think aloud, and fields of llama.cpp's own.
    *("vision", "thinking", "image", "template"),
)
_FINGERPRINT: Final = "the fingerprint has to begin with b there, as names of its builds do"
_EXPECTED: Final = {
    "test_invalid_chat_completion_req[messages7]": "two messages of the assistant at the end are "
    "an error there, where the last one is the beginning of the reply; here, as in the API of "
    "OpenAI's, another message follows",
    "test_chat_completion_with_openai_library": _FINGERPRINT,
    "test_completion_with_openai_library": _FINGERPRINT,
    "test_logprobs_stream": "in the first chunk, which has the role, the content has to be null "
    "there; here it is an empty text, as in the streams of OpenAI's API",
    "test_anthropic_empty_messages": "served there, by design; here refused with 400, as "
    "Anthropic's own API does",
}
"""Tests that ask what the APIs of OpenAI's and Anthropic's do not say."""
_WITHOUT_TOOLS: Final = dict.fromkeys(
    (
        "test_anthropic_tool_use_basic",
        "test_anthropic_tool_result",
        "test_anthropic_tool_result_with_text",
        "test_anthropic_tool_result_error",
        "test_anthropic_tool_streaming",
        "test_anthropic_streaming_content_block_indices",
    ),
    NO_TOOLS,
)
_MAX_RUN_S: Final = 540


def judge(target: Target) -> int:
    """Write the report; 1 if a test failed that should not."""
    python = environment("llamacpp", *_PACKAGES) / "python"
    if not (_TESTS / "utils.py").exists():
        _fetch(python)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "junit.xml"
        without = " and ".join(f"not {word}" for word in _LEFT_OUT)
        finished = subprocess.run(
            [
                *(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"),
                *("-p", "bench.judges.programs.llamacpp_plugin", "-k", without),
                *(f"--junitxml={results}", *_SELECTED),
            ],
            cwd=_TESTS,
            env={
                **os.environ,
                "PYTHONPATH": f"{_TESTS}{os.pathsep}{ROOT}",
                "DEBUG_EXTERNAL": "1",
                "PORT": str(urlsplit(target.url).port),
                "OUTRIDER_MODEL": target.model,
                "OUTRIDER_KEY": target.key,
            },
            stdout=subprocess.PIPE,
            text=True,
            timeout=_MAX_RUN_S,
            check=False,
        )
        if not results.exists():
            raise RuntimeError(f"the tests did not run:\n{finished.stdout}")
        found = findings(results.read_text(encoding="utf-8"))
    tried = (
        f"Tests of its server that come with {VERSION}: {', '.join(_SELECTED)}; without those of "
        "images, of thinking and of llama.cpp's own fields. The model's name and the key are put "
        "into their requests, and `/v1` before their paths. What the tests' own model says is not "
        "asked of ours."
    )
    command = f"python -m bench.judges llamacpp_tests{target.option}"
    expected = _EXPECTED | (_WITHOUT_TOOLS if target.is_default else {})
    judged = Report(f"llama.cpp's tests of {VERSION}", command, tried, expecting(found, expected))
    return keep("llamacpp_tests", judged, target)


def findings(junit: str) -> list[Finding]:
    """One for each test that ran."""
    cases = ElementTree.fromstring(junit).iter("testcase")
    return [_finding(case) for case in cases if case.find("skipped") is None]


def _finding(case: ElementTree.Element) -> Finding:
    name = case.get("name", "")
    wrong = [part for part in case if part.tag in ("failure", "error")]
    if not wrong:
        return Finding(name, "passed")
    return Finding(name, "failed", "; ".join(part.get("message", "") for part in wrong))


def _fetch(python: Path) -> None:
    """Unpack the tests, and nothing else, of the source distribution."""
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "-q")
    # pip asks the distribution's own build backend for its metadata.
    subprocess.run([*pip, "install", "scikit-build-core[pyproject]>=0.9.2"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "source.txt"
        pinned.write_text(SOURCE + "\n", encoding="ascii")
        how = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
        print("getting the tests of llama.cpp's server", file=sys.stderr)
        subprocess.run([*pip, "download", *how, "-r", str(pinned), "-d", folder], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            wanted = [member for member in tar.getmembers() if f"/{_PART}" in member.name]
            tar.extractall(folder, members=wanted, filter="data")
        (tests,) = Path(folder).glob(f"*/{_PART}")
        shutil.rmtree(_TESTS, ignore_errors=True)
        _TESTS.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(tests, _TESTS)
