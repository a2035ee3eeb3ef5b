"""The contract's outcomes by engine are those that pytest found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.contract import CASES, Case
from bench.harness.provenance import ROOT

TESTS = """
import pytest

@pytest.fixture(params=["f32", "bf16"])
def arithmetic(request):
    if request.param == "bf16":
        pytest.skip("not on this CPU")

class TestOne:
    @pytest.mark.parametrize("rows", [1, 2])
    def test_rows(self, arithmetic, rows):
        assert rows == 1

class TestTwo:
    @pytest.fixture
    def broken(self):
        yield
        raise ValueError("while it closed")

    def test_closing(self, broken):
        pass
"""


def test_a_quick_run_has_every_test_of_the_engines_without_a_model() -> None:
    command = (sys.executable, "-m", "bench.contract", "--quick")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "bench": "contract",
        "quick": True,
        "failed": 0,
    }
    assert " failed" in done.stdout and "fake-turns" in done.stdout


def test_outcomes_are_told_by_parameter_and_skips_with_their_reason(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    program = (
        "import sys; from pathlib import Path; from bench.contract import Case, run_tests\n"
        "found = run_tests(['test_it.py'], Path(sys.argv[1]))\n"
        "cases = [('test_it.py::TestOne', 'f32'), ('test_it.py::TestOne', 'bf16'), "
        "('test_it.py::TestTwo', '')]\n"
        "for tests, arithmetic in cases:\n"
        "    counts, why = found.of(Case('x', arithmetic, '', tests))\n"
        "    print('found', sorted(counts.items()), why)\n"
    )
    command = (sys.executable, "-c", program, str(tmp_path))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert [line for line in done.stdout.splitlines() if line.startswith("found")] == [
        "found [('failed', 1), ('passed', 1)] ",
        "found [('skipped', 2)] not on this CPU",
        "found [('failed', 1)] ",
    ], done.stdout + done.stderr


def test_classes_that_the_table_names_are_there() -> None:
    for case in CASES:
        path, _, name = case.tests.partition("::")
        assert f"class {name}(" in (ROOT / path).read_text("utf-8")


def test_a_test_belongs_to_the_case_of_its_class_and_parameter() -> None:
    case = Case("torch", "f32", "", "a.py::TestA")
    assert case.has("a.py::TestA::test_x[f32-1]") and case.has("a.py::TestA::test_x[1-f32]")
    assert not case.has("a.py::TestA::test_x[bf16-1]")
    assert not case.has("a.py::TestAlso::test_x[f32-1]")
