"""The pages' blocks, and what the check finds stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.harness import readme
from bench.harness.benches import bench_of
from bench.harness.provenance import digest
from bench.harness.readme import complaints, regenerated, shown
from bench.harness.record import Run, is_stale, load

BLOCK = "<!-- bench:demo -->\n<!-- /bench:demo -->"


def run_of() -> Run:
    run = Run(name="demo", quick=False, command="python -m bench.demo")
    table = run.table("Speeds", "what", "tok/s")
    table.add("ours", 12.0)
    table.add("theirs", 8.0)
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a bench called demo, whose record is fresh."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "outrider").mkdir()
    (tmp_path / "bench" / "demo.py").write_text("print(1)\n")
    (tmp_path / "outrider" / "core.py").write_text("x = 1\n")
    run_of().finish(tmp_path / "results")
    file = tmp_path / "results" / "demo.json"
    record = json.loads(file.read_text())
    record["commit"] = {"id": "abcdef0123456789", "dirty": False}
    record["sources"]["digest"] = digest(bench_of("demo").all_sources, tmp_path)
    file.write_text(json.dumps(record))
    page = tmp_path / "page.md"
    page.write_text(regenerated(f"# A\n{BLOCK}\n", tmp_path / "results", tmp_path))
    return tmp_path


def check(root: Path) -> list[str]:
    return complaints(root / "results", [root / "page.md"], root)


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


def test_a_fresh_record_passes_and_says_its_commit(root: Path) -> None:
    assert check(root) == []
    assert "recorded at commit abcdef01</sub>" in page(root)


@pytest.mark.parametrize("file", ["bench/demo.py", "outrider/core.py", "services/new.py"])
def test_a_change_of_what_a_bench_depends_on_makes_its_record_stale(root: Path, file: str) -> None:
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text("x = 2\n")
    stale, outdated = check(root)
    assert stale.startswith("demo: stale, recorded at commit abcdef01; `python -m bench.demo`")
    assert outdated.startswith("page.md: out of date")
    assert "recorded at commit abcdef01, stale</sub>" in page(root)


@pytest.mark.parametrize(
    "file", ["README.md", "outrider/card.md", "bench/other.py", "outrider/__pycache__/core.pyc"]
)
def test_a_change_elsewhere_does_not(root: Path, file: str) -> None:
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text("x = 2\n")
    assert check(root) == []


def test_a_page_that_does_not_show_its_record_is_out_of_date(root: Path) -> None:
    (root / "page.md").write_text(BLOCK)
    assert check(root) == ["page.md: out of date; `python -m bench.harness.readme` rewrites it"]


def test_a_record_that_does_not_say_its_sources_is_stale(root: Path) -> None:
    record = load("demo", root / "results")
    assert record is not None
    assert not is_stale(record, root)
    del record["sources"]
    assert is_stale(record, root)


def test_a_missing_record_is_named(root: Path) -> None:
    (root / "results" / "demo.json").unlink()
    assert check(root)[0] == "demo: not recorded; `python -m bench.demo` records it"


def test_the_check_s_status_is_one_if_anything_is_wrong(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["readme", "--check"])
    monkeypatch.setattr(readme, "complaints", lambda: check(root))
    assert readme.main() == 0
    (root / "outrider" / "core.py").write_text("x = 2\n")
    assert readme.main() == 1
    assert "`python -m bench.demo` renews it" in capsys.readouterr().out
