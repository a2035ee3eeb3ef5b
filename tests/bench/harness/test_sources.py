"""Which files a benchmark measures, by its imports and the processes it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness.benches import bench_of
from bench.harness.provenance import ROOT
from bench.harness.sources import digests, files_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project without any module."""
    for package in ("outrider", "outrider/cli", "services", "services/edge", "services/router"):
        write(tmp_path, f"{package}/__init__.py")
    write(tmp_path, "bench/__init__.py")
    return tmp_path


def write(root: Path, file: str, text: str = "") -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)


def measured(root: Path, text: str, *data: str) -> set[str]:
    """Files that a benchmark of this text measures, without packages."""
    write(root, "bench/demo.py", text)
    found = files_of("bench.demo", data, root)
    assert list(found) == sorted(found)
    return {file for file in found if not file.endswith("__init__.py")} - {"bench/demo.py"}


def test_imports_are_followed_wherever_they_stand(root: Path) -> None:
    write(root, "outrider/core.py", "def f():\n    from outrider import far\n")
    write(root, "outrider/far.py", "import services.edge.app\n")
    write(root, "services/edge/app.py")
    write(root, "outrider/other.py")
    assert measured(root, "import json\nfrom outrider.core import f\n") == {
        "outrider/core.py",
        "outrider/far.py",
        "services/edge/app.py",
    }


def test_imports_for_type_checkers_alone_are_not(root: Path) -> None:
    write(root, "outrider/core.py")
    assert not measured(root, "if TYPE_CHECKING:\n    from outrider import core\n")


def test_packages_count_with_what_they_import(root: Path) -> None:
    write(root, "outrider/deep/__init__.py", "from outrider.deep import one\n")
    write(root, "outrider/deep/one.py")
    write(root, "outrider/deep/two.py")
    found = measured(root, "import outrider.deep.two\n")
    assert found == {"outrider/deep/one.py", "outrider/deep/two.py"}


def test_modules_started_as_programs_are_followed(root: Path) -> None:
    write(root, "bench/far/__init__.py")
    write(root, "bench/far/__main__.py", "from outrider import core\n")
    write(root, "outrider/core.py")
    found = measured(root, 'COMMAND = (sys.executable, "-m", "bench.far")\n')
    assert found == {"bench/far/__main__.py", "outrider/core.py"}


@pytest.mark.parametrize(
    ("text", "services"),
    [
        ('("outrider.cli.main", "serve", "router")', {"router"}),
        ('("outrider.cli.main", "serve", role); roles = ("edge", "router")', {"edge", "router"}),
        ('("outrider.cli.main", "up")', {"edge", "router"}),
        ('("outrider.cli.main", "down")', set()),
        ('("serve", "router")', set()),
    ],
)
def test_services_that_are_started_are_followed(root: Path, text: str, services: set[str]) -> None:
    commands = '{"serve": "outrider.cli.serve:serve", "up": "outrider.cli.up:up"}'
    write(root, "outrider/cli/main.py", f"COMMANDS = {commands}\n")
    write(root, "outrider/cli/serve.py")
    write(root, "outrider/cli/up.py")
    for role in ("edge", "router"):
        write(root, f"services/{role}/app.py")
    found = measured(root, text)
    assert {file.split("/")[1] for file in found if file.startswith("services")} == services
    assert ("outrider/cli/serve.py" in found) == ("serve" in text and bool(services))
    assert ("outrider/cli/up.py" in found) == ("up" in text)


def test_data_beside_a_module_belong_to_it_and_prompts_are_named(root: Path) -> None:
    write(root, "outrider/deep/__init__.py")
    write(root, "outrider/deep/core.py")
    write(root, "outrider/deep/catalog.toml")
    write(root, "outrider/deep/data/model.bin")
    write(root, "outrider/deep/README.md")
    write(root, "outrider/deep/py.typed")
    for folder in ("held_out", "tuning"):
        write(root, f"bench/data/{folder}/chat.json")
    text = "from outrider.deep import core\n"
    beside = {"outrider/deep/catalog.toml", "outrider/deep/data/model.bin"}
    assert measured(root, text) == {"outrider/deep/core.py", *beside}
    assert measured(root, text, "bench/data/held_out") == {
        "outrider/deep/core.py",
        *beside,
        "bench/data/held_out/chat.json",
    }


def test_what_keeps_records_is_not_measured(root: Path) -> None:
    write(root, "bench/harness/__init__.py", "from bench.harness.record import start\n")
    write(root, "bench/harness/record.py", "from outrider import core\n")
    write(root, "outrider/core.py")
    assert not measured(root, "from bench.harness import start\n")


def test_digests_are_of_contents(root: Path) -> None:
    write(root, "a.py", "x = 1\n")
    write(root, "b.py", "x = 1\n")
    found = digests(["a.py", "b.py", "gone.py"], root)
    assert found["a.py"] == found["b.py"] != ""
    assert found["gone.py"] == ""


def test_the_benches_here_measure_what_they_start_and_no_more() -> None:
    def services(record: str) -> set[str]:
        files = bench_of(record).sources(ROOT)
        return {file.split("/")[1] for file in files if file.startswith("services/")} - {
            "__init__.py"
        }

    assert services("sampling") == set()
    assert services("inference") == {"inference"}
    assert services("exactness") == {"edge", "inference", "router", "tokenizer"}
    assert services("wan") == {"edge", "inference", "router"}
    assert services("tokenizer_service") == {"tokenizer"}
    drafter = "outrider/engines/data/smollm2-135m-instruct.draft.gguf"
    assert drafter in bench_of("wan").sources(ROOT)
