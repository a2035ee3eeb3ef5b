"""Which engines of this machine keep their contract: every test of it that passed, failed, or did
not run, and why.

The contract of engines that compute rows is `tests/engines/seam/contract.py`, that of engines that
write whole replies `tests/engines/turn/contract.py`. `torch` takes a GPU if there is one. Needs
PyTorch (`make torch`) for its rows; what is not installed is listed as not run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from bench.harness import parser, start
from bench.harness.provenance import ROOT
from bench.peers.vllm import PEER

_ENGINES: Final = "tests/engines"
_OPENVINO: Final = f"{_ENGINES}/openvino/test_arithmetics.py::TestArithmetics"
_TORCH: Final = f"{_ENGINES}/torch/test_engine.py::TestTorchEngine"
_DEFAULT: Final = "the default model's first 4 layers"
_GPT_OSS: Final = "gpt-oss, small, random weights"
_STAND_IN: Final = "a stand-in for the package"


@dataclass(frozen=True, slots=True)
class Case:
    """One row: an engine, what it computes, and the tests that say so."""

    engine: str
    arithmetic: str
    """And the name of the tests' parameter, if there is one."""
    computes: str
    tests: str
    """A class, as pytest names it."""
    package: str = ""
    """Which computes; "" without one."""

    def has(self, test: str) -> bool:
        """Whether the test of that name is among its own."""
        name, _, parameters = test.removesuffix("]").partition("[")
        mine = name.rpartition("::")[0] == self.tests
        return mine and (not self.arithmetic or self.arithmetic in parameters.split("-"))


CASES: Final = (
    *(Case("openvino", it, _DEFAULT, _OPENVINO, "openvino") for it in ("f32", "bf16", "int8")),
    Case(
        *("openvino", "", _GPT_OSS, f"{_ENGINES}/openvino/test_gpt_oss.py::TestGptOssEngine"),
        "openvino",
    ),
    *(Case("torch", it, _DEFAULT, _TORCH, "torch") for it in ("f32", "bf16", "int8")),
    Case("torch", "", _GPT_OSS, f"{_ENGINES}/torch/test_engine.py::TestGptOss", "torch"),
    Case("fake", "", "no model", f"{_ENGINES}/test_fake.py::TestFakeEngine"),
    Case("fake-turns", "", "no model", f"{_ENGINES}/turn/test_fake.py::TestFakeTurnEngine"),
    Case(
        *("openai-server", "", "a record of vLLM's server"),
        f"{_ENGINES}/turn/test_openai_server.py::TestRecordedVllm",
    ),
    Case(
        *("openai-server", "", "vLLM's server"),
        *(f"{_ENGINES}/turn/test_vllm_server.py::TestVllmServer", PEER.name),
    ),
    Case("vllm", "", _STAND_IN, f"{_ENGINES}/turn/test_vllm.py::TestVllmTurnEngine"),
    Case("vllm", "", "vLLM", f"{_ENGINES}/turn/test_vllm_installed.py::TestVllm", "vllm"),
    Case(
        *("tensorrt-llm", "", _STAND_IN),
        f"{_ENGINES}/turn/test_trtllm.py::TestTensorRtLlmTurnEngine",
    ),
)
QUICK: Final = ("fake", "fake-turns")
"""Engines of a quick run."""
NOTHING_COMPUTES: Final = "\N{EN DASH}"


@dataclass(eq=False, slots=True)
class Outcomes:
    """What became of each test; a plugin of pytest."""

    by_test: dict[str, str] = field(default_factory=dict)
    """By name: passed, failed or skipped. A test whose preparation fails has failed."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why one was skipped."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed or self.by_test.get(item.nodeid, "passed") == "passed":
            self.by_test[item.nodeid] = report.outcome
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[item.nodeid] = report.longrepr[2].removeprefix("Skipped: ")
        return report

    def of(self, case: Case) -> tuple[Mapping[str, int], str]:
        """How many tests of it ended in which way, and why some were skipped."""
        mine = [test for test in self.by_test if case.has(test)]
        why = dict.fromkeys(self.reasons[it] for it in mine if it in self.reasons)
        return Counter(self.by_test[test] for test in mine), "; ".join(why)


def main() -> int:
    arguments = parser("contract", __doc__ or "").parse_args()
    run = start("contract", arguments)
    cases = [it for it in CASES if not run.quick or it.engine in QUICK]
    installed = [it for it in cases if _is_installed(it)]
    outcomes = run_tests(list(dict.fromkeys(it.tests for it in installed)))
    table = run.table(
        "Tests of the engines' contract, by engine and what computes",
        *("engine", "arithmetic", "what computes", "device", "passed", "failed", "not run"),
    )
    num_failed = 0
    for case in cases:
        counts, why = outcomes.of(case)
        if case not in installed:
            why = f"all: {case.package} is not installed"
        elif not counts:
            raise SystemExit(f"pytest found no tests of {case.tests} {case.arithmetic}".rstrip())
        elif counts.get("skipped"):
            why = f"{counts['skipped']}: {why}"
        num_failed += counts.get("failed", 0)
        table.add(
            *(case.engine, case.arithmetic or NOTHING_COMPUTES, _computes(case), _device(case)),
            *(counts.get("passed", 0), counts.get("failed", 0), why or NOTHING_COMPUTES),
        )
    run.figures["failed"] = num_failed
    run.finish()
    return int(num_failed > 0)


def run_tests(tests: Sequence[str], root: Path = ROOT) -> Outcomes:
    """Run them in this process, and say what became of each. Raises SystemExit if pytest could not
    run them."""
    outcomes = Outcomes()
    options = ("-n0", "-q", "-p", "no:cacheprovider", "--rootdir", str(root), "--tb=short")
    status = pytest.main([*options, *(str(root / it) for it in tests)], plugins=[outcomes])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"pytest ended with {status!r}")
    return outcomes


def _is_installed(case: Case) -> bool:
    if case.package == PEER.name and case.engine == "openai-server":
        return PEER.is_installed()
    return not case.package or find_spec(case.package) is not None


def _computes(case: Case) -> str:
    """With the version of what computes, if it is known here."""
    try:
        return f"{case.computes}, {case.package} {metadata.version(case.package)}"
    except (metadata.PackageNotFoundError, ValueError):
        return case.computes


def _device(case: Case) -> str:
    if case.package == "torch" and _is_installed(case):
        import torch

        if torch.cuda.is_available():
            return str(torch.cuda.get_device_name())
    return "CPU" if case.package and _is_installed(case) else NOTHING_COMPUTES


if __name__ == "__main__":
    sys.exit(main())
