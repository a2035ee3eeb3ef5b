"""The pages' blocks, what the check fails for, and what it says beside."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench.harness import readme
from bench.harness.benches import bench_of
from bench.harness.readme import complaints, regenerated, remarks, shown
from bench.harness.record import Changes, Run, changes
from bench.harness.sources import digests

BLOCK = "<!-- bench:demo -->\n<!-- /bench:demo -->"


def run_of() -> Run:
    run = Run(name="demo", quick=False, command="python -m bench.demo")
    table = run.table("Speeds", "what", "tok/s")
    table.add("ours", 12.0)
    table.add("theirs", 8.0)
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a bench called demo that imports one module, and its record."""
    for package in ("bench", "outrider"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "bench" / "demo.py").write_text("from outrider import core\n")
    (tmp_path / "outrider" / "core.py").write_text("x = 1\n")
    run_of().finish(tmp_path / "results")
    edit(
        tmp_path,
        commit={"id": "abcdef0123456789", "dirty": False},
        sources=digests(bench_of("demo").sources(tmp_path), tmp_path),
    )
    page = tmp_path / "page.md"
    page.write_text(regenerated(f"# A\n{BLOCK}\n", tmp_path / "results", tmp_path))
    return tmp_path


def edit(root: Path, **values: object) -> dict[str, object]:
    """Change the record, and return it."""
    file = root / "results" / "demo.json"
    record = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps(record))
    return record


def git(root: Path, *arguments: str) -> str:
    """Run git in this project; what it prints."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", "-C", str(root), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def check(root: Path) -> list[str]:
    return complaints(root / "results", [root / "page.md"], root)


def said(root: Path) -> list[str]:
    return remarks(root / "results", [root / "page.md"], root)


def page(root: Path) -> str:
    return regenerated((root / "page.md").read_text(), root / "results", root)


def test_the_readme_s_blocks_are_made_anew(tmp_path: Path) -> None:
    run_of().finish(tmp_path)
    text = "# A\n<!-- bench:demo -->\nold\n<!-- /bench:demo -->\nB\n"
    assert shown([text, "", text]) == ["demo"]
    new = regenerated(text, tmp_path)
    assert "| ours | 12.0 |" in new
    assert "| what | tok/s |\n| --- | ---: |" in new
    assert "old" not in new
    assert new.startswith("# A\n<!-- bench:demo -->\n")
    assert new.endswith("<!-- /bench:demo -->\nB\n")
    assert regenerated(new, tmp_path) == new


def test_a_block_may_have_one_table_alone(tmp_path: Path) -> None:
    run = run_of()
    run.table("Second", "what").add("theirs")
    run.finish(tmp_path)
    new = regenerated("<!-- bench:demo:2 -->\n<!-- /bench:demo -->", tmp_path)
    assert "**Second**" in new
    assert "ours" not in new


def test_a_long_table_is_folded_up(tmp_path: Path) -> None:
    run = run_of()
    long = run.table("Everything", "number")
    for number in range(100):
        long.add(number)
    run.finish(tmp_path)
    new = regenerated(BLOCK, tmp_path)
    assert "**Speeds**" in new
    assert "<details><summary><b>Everything</b> (100 rows)</summary>\n\n| number |" in new
    assert new.count("</details>") == 1


def test_notes_stand_under_their_table(tmp_path: Path) -> None:
    run = run_of()
    run.tables[0].note("n = 5.")
    run.finish(tmp_path)
    assert "| theirs | 8.00 |\n\nn = 5.\n\n<sub>" in regenerated(BLOCK, tmp_path)


def test_a_block_without_results_says_so(tmp_path: Path) -> None:
    new = regenerated("<!-- bench:none -->\n<!-- /bench:none -->", tmp_path)
    assert new == (
        "<!-- bench:none -->\nNot recorded yet: `python -m bench.none`.\n<!-- /bench:none -->"
    )


def test_a_record_of_which_nothing_changed_says_its_commit_alone(root: Path) -> None:
    assert (check(root), said(root)) == ([], [])
    assert "recorded at commit abcdef01</sub>" in page(root)


@pytest.mark.parametrize("file", ["bench/demo.py", "outrider/core.py", "outrider/__init__.py"])
def test_a_change_of_what_is_measured_is_counted_and_fails_nothing(root: Path, file: str) -> None:
    (root / file).write_text("x = 2\n")
    since = "recorded at commit abcdef01; changed since: 1 of 4 files in what is measured"
    assert said(root) == [f"demo: {since}; `python -m bench.demo` renews it"]
    assert f"{since}</sub>" in page(root)
    assert check(root) == []
    (root / "page.md").write_text(page(root))
    assert check(root) == []


def test_a_file_that_is_gone_has_changed(root: Path) -> None:
    record = edit(root)
    (root / "outrider" / "core.py").unlink()
    assert changes(record, root) == Changes(1, 4)


@pytest.mark.parametrize("file", ["README.md", "outrider/card.md", "outrider/other.py"])
def test_a_change_elsewhere_is_not_counted(root: Path, file: str) -> None:
    (root / file).write_text("x = 2\n")
    assert (check(root), said(root)) == ([], [])


def test_one_table_alone_does_not_count_what_changed(root: Path) -> None:
    (root / "outrider" / "core.py").write_text("x = 2\n")
    one = regenerated("<!-- bench:demo:1 -->\n<!-- /bench:demo -->", root / "results", root)
    assert "recorded at commit abcdef01</sub>" in one


@pytest.mark.parametrize("sources", [None, {"paths": ["bench/demo.py"], "digest": "0123"}])
def test_an_older_record_is_compared_by_git(root: Path, sources: dict[str, object] | None) -> None:
    git(root, "init", "-q")
    git(root, "add", "bench", "outrider")
    git(root, "commit", "-q", "-m", "first")
    commit = {"id": git(root, "rev-parse", "HEAD"), "dirty": False}
    record = edit(root, commit=commit, sources=sources)
    (root / "outrider" / "core.py").write_text("x = 2\n")
    (root / "outrider" / "other.py").write_text("")
    assert changes(record, root) == Changes(1, 4)


def test_an_older_record_without_git_says_its_commit_alone(root: Path) -> None:
    record = edit(root, sources={"paths": ["bench/demo.py"], "digest": "0123"})
    assert changes(record, root) is None
    assert "recorded at commit abcdef01</sub>" in page(root)
    assert changes(edit(root, commit={"id": "", "dirty": False}), root) is None


def test_machines_are_told_apart(root: Path) -> None:
    facts = {"cpu": "AMD EPYC", "cores": 2, "python": "3.11.7", "loop_us": 80.4}
    edit(root, machine={**facts, "date": "2026-11-28"})
    assert "2026-11-28, AMD EPYC, 2 cores, Python 3.11.7, loop 80 us, recorded" in page(root)
    more = {"cpu_family": "26", "cpu_model": "2", "cpu_flags": ["avx2", "avx512f"]}
    edit(root, machine={**facts, **more, "precision": "bf16", "date": "2026-11-28"})
    assert (
        "2026-11-28, AMD EPYC (family 26, model 2), avx2 avx512f, engine in bf16, 2 cores, "
    ) in page(root)


def test_a_page_that_does_not_show_its_record_is_out_of_date(root: Path) -> None:
    (root / "page.md").write_text(BLOCK)
    assert check(root) == ["page.md: out of date; `python -m bench.harness.readme` rewrites it"]


def test_a_single_figure_is_the_record_s(root: Path) -> None:
    results = root / "results"
    run = run_of()
    run.table("Ways", "way", "at once", "p50: all").add("a", 2, 3.14159)
    run.tables[-1].add("a", 16, 0.0)
    run.finish(results)
    page = (
        "so <!-- figure demo:2:a / 2:p50: all -->9<!-- /figure --> ms, "
        "<!-- figure demo:1:th:tok/s --><!-- /figure -->."
    )
    made = regenerated(page, results, root)
    assert made.endswith(
        "all -->3.14<!-- /figure --> ms, <!-- figure demo:1:th:tok/s -->8.00<!-- /figure -->."
    )
    assert regenerated(made, results, root) == made
    with pytest.raises(LookupError, match="demo, table 1: there is no cell 'nobody', 'tok/s'"):
        regenerated("<!-- figure demo:1:nobody:tok/s --><!-- /figure -->", results, root)
    other = regenerated("<!-- figure other:1:a:b --><!-- /figure -->", results, root)
    assert ">not recorded yet<" in other


def test_a_missing_record_is_named(root: Path) -> None:
    (root / "results" / "demo.json").unlink()
    assert said(root) == ["demo: not recorded; `python -m bench.demo` records it"]
    assert check(root) == ["page.md: out of date; `python -m bench.harness.readme` rewrites it"]


def test_the_check_s_status_is_one_if_anything_is_wrong(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["readme", "--check"])
    monkeypatch.setattr(readme, "complaints", lambda: check(root))
    monkeypatch.setattr(readme, "remarks", lambda: said(root))
    (root / "outrider" / "core.py").write_text("x = 2\n")
    assert readme.main() == 0
    assert "`python -m bench.demo` renews it" in capsys.readouterr().out
    (root / "page.md").write_text(BLOCK)
    assert readme.main() == 1
    assert "page.md: out of date" in capsys.readouterr().out
