"""Mistakes in a small repository, what comes of its tests, and that our lists fit the source."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tools.mutations.mutation import Mutation, MutationError, check_applicable, read_mutations
from tools.mutations.running import Outcome, run_mutations

SOURCE = """def larger(a: int, b: int) -> int:
    limit = 10
    return a if a > b else b
"""
TESTS = """from larger import larger

def test_larger() -> None:
    assert larger(1, 2) == 2
"""
SWAPPED = Mutation(
    "swapped", "the larger one", "larger.py", "a if a > b", "a if a < b", ("test_larger.py",)
)
UNSEEN = replace(SWAPPED, name="unseen", old="limit = 10", new="limit = 11")
HANGS = replace(SWAPPED, name="hangs", old="limit = 10", new="while True: pass")
IS_NONE = replace(SWAPPED, name="none", old="limit = 10", new="limit =")
FAILS_ANYWAY = replace(SWAPPED, name="fails anyway", tests=("test_wrong.py",))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "larger.py").write_text(SOURCE)
    (tmp_path / "test_larger.py").write_text(TESTS)
    (tmp_path / "test_wrong.py").write_text(TESTS.replace("== 2", "== 1"))
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    return tmp_path


def test_what_becomes_of_each(repository: Path) -> None:
    told: list[str] = []
    mutations = [SWAPPED, UNSEEN, IS_NONE, FAILS_ANYWAY]
    results = run_mutations(
        mutations, repository, num_jobs=2, report=lambda it: told.append(it.mutation.name)
    )
    assert [result.mutation for result in results] == mutations
    assert [result.outcome for result in results] == [
        Outcome.CAUGHT,
        Outcome.NOT_CAUGHT,
        Outcome.BROKEN,
        Outcome.BROKEN,
    ]
    assert sorted(told) == sorted(mutation.name for mutation in mutations)
    assert "1 passed" in results[1].output
    assert "SyntaxError" in results[2].output
    assert "without it the tests fail" in results[3].output and "1 failed" in results[3].output
    assert (repository / "larger.py").read_text() == SOURCE
    assert sorted(path.name for path in repository.iterdir()) == [
        *(".git", "larger.py", "test_larger.py", "test_wrong.py"),
    ]


def test_what_does_not_end_is_told_apart(repository: Path) -> None:
    (result,) = run_mutations([HANGS], repository, num_jobs=1, limit_s=5.0)
    assert result.outcome is Outcome.HUNG


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"old": "a minus b"}, "its text occurs 0 times in larger.py"),
        ({"old": "int"}, "its text occurs 3 times in larger.py"),
        ({"file": "smaller.py"}, "there is no smaller.py"),
        ({"tests": ("test_larger.py::test_larger", "test_smaller.py")}, "there is no test_smaller"),
    ],
)
def test_a_mutation_that_does_not_fit_the_source_is_named(
    repository: Path, changes: dict[str, str], says: str
) -> None:
    with pytest.raises(MutationError, match=f"swapped: {says}"):
        check_applicable([replace(SWAPPED, **changes)], repository)  # type: ignore[arg-type]


def test_names_are_those_of_one(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    row = '[[mutation]]\nname = "a"\npromise = ""\nfile = ""\nold = ""\nnew = ""\ntests = []\n'
    file.write_text(row)
    assert [mutation.name for mutation in read_mutations([file])] == ["a"]
    with pytest.raises(MutationError, match="the name a is that of several"):
        read_mutations([file, file])
    file.write_text(row.replace("promise", "breaks"))
    with pytest.raises(MutationError, match=r"some\.toml has a mutation with other fields"):
        read_mutations([file])


def test_the_lists_fit_the_source() -> None:
    mutations = read_mutations()
    check_applicable(mutations, Path(__file__).parents[2])
    assert all(mutation.old != mutation.new and mutation.tests for mutation in mutations)
