"""Signatures are read from wheels and folders without importing anything."""

from __future__ import annotations

import inspect
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from outrider.engines.turn import signatures
from outrider.engines.turn.signatures import Record, check_installed
from outrider.errors import ConfigError
from tools import engine_signatures
from tools.engine_signatures import Place, entry, main

SOURCE = """
raise ImportError("it is parsed, not imported")

class Base:
    first: int

class Made(Base):
    kind: ClassVar[str] = "none"
    second: str = Field(default="two", description="words")
    third: list = field(default_factory=list)
    hidden: int = field(default=0, init=False)
    _private: int = 3
    member = 1

    @property
    def length(self): ...

    async def go(self, /, one, two=None, *rest, three, four=4, **more):
        self.told = one

    @staticmethod
    def still(one): ...

    @classmethod
    def start(cls, one, two=Made.kind): ...

class Plain(Base):
    def __init__(self, one, *, two=2): self.one = one
"""


def found(name: str) -> dict[str, object]:
    it = entry(SOURCE, Place("pkg/file.py", name), False)
    assert it is not None
    return it


def test_a_constructor_has_the_fields_of_the_class_and_its_bases() -> None:
    made = found("Made")
    assert made["parameters"] == [
        ["first", "KEYWORD_ONLY"],
        ["second", "KEYWORD_ONLY", "'two'"],
        ["third", "KEYWORD_ONLY", "list"],
    ]
    assert {"first", "second", "hidden", "member", "length", "told", "go"} <= set(
        made["attributes"]  # type: ignore[call-overload]
    )
    assert len(str(made["sha256"])) == 64


def test_a_constructor_that_is_written_out_is_taken() -> None:
    assert found("Plain")["parameters"] == [
        ["one", "POSITIONAL_OR_KEYWORD"],
        ["two", "KEYWORD_ONLY", "2"],
    ]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (
            "go",
            [
                ["one", "POSITIONAL_OR_KEYWORD"],
                ["two", "POSITIONAL_OR_KEYWORD", "None"],
                ["rest", "VAR_POSITIONAL"],
                ["three", "KEYWORD_ONLY"],
                ["four", "KEYWORD_ONLY", "4"],
                ["more", "VAR_KEYWORD"],
            ],
        ),
        ("still", [["one", "POSITIONAL_OR_KEYWORD"]]),
        (
            "start",
            [
                ["one", "POSITIONAL_OR_KEYWORD"],
                ["two", "POSITIONAL_OR_KEYWORD", "Made.kind"],
            ],
        ),
    ],
)
def test_a_method_has_its_parameters_without_the_first(
    method: str, parameters: list[list[str]]
) -> None:
    made = found(f"Made.{method}")
    assert made["parameters"] == parameters
    record = Record("pkg", "1", "a test", False, {"pkg:Made": made})
    assert isinstance(record.signature("pkg:Made"), inspect.Signature)


def test_a_function_has_all_its_parameters() -> None:
    assert entry("def free(one, *, two=2): ...", Place("f.py", "free"), True) == {
        "source": "f.py",
        "defined_as": "free",
        "parameters": [["one", "POSITIONAL_OR_KEYWORD"], ["two", "KEYWORD_ONLY", "2"]],
    }


def test_what_is_not_there_is_not_recorded() -> None:
    assert entry(SOURCE, Place("pkg/file.py", "Absent"), False) is None
    assert entry(SOURCE, Place("pkg/file.py", "Made.absent"), False) is None


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    places = {
        "pkg:Made": Place("pkg/file.py", "Made"),
        "pkg:Made.go": Place("pkg/file.py", "Made.go"),
    }
    monkeypatch.setattr(engine_signatures, "PLACES", {"pkg": places})
    path = tmp_path / "pkg-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/__init__.py", "")
        archive.writestr("pkg/file.py", SOURCE)
        archive.writestr("pkg/large.bin", bytes(1 << 20))
    return path


@pytest.fixture
def address(wheel: Path) -> Iterator[str]:
    content = wheel.read_bytes()

    class Ranges(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()

        def do_GET(self) -> None:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            part = content[int(first) : int(last) + 1]
            sent.append(len(part))
            self.send_response(206)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

        def log_message(self, *arguments: object) -> None: ...

    sent: list[int] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/{wheel.name}"
    server.shutdown()
    thread.join()
    server.server_close()
    assert sum(sent) < len(content) / 2, "only what is read is fetched"


def test_a_wheel_behind_an_address_is_read_in_parts(
    wheel: Path, address: str, tmp_path: Path
) -> None:
    main(["--out", str(tmp_path), address])
    remote = (tmp_path / "pkg-1.2.3.json").read_text()
    main(["--out", str(tmp_path), str(wheel)])
    assert (tmp_path / "pkg-1.2.3.json").read_text() == remote
    value = json.loads(remote)
    assert value["version"] == "1.2.3"
    assert value["read_from"] == f"wheel {wheel.name}"
    assert set(value["names"]) == {"pkg:Made", "pkg:Made.go"}


def test_a_folder_read_in_part_says_so(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    arguments = ["--out", str(tmp_path), str(tmp_path), "--version", "2"]
    with pytest.raises(SystemExit, match=r"does not define Made"):
        (tmp_path / "pkg/file.py").write_text("")
        main(arguments)
    main([*arguments, "--in-part", "pages of its documentation"])
    value = json.loads((tmp_path / "pkg-2.json").read_text())
    assert (value["in_part"], value["names"]) == (True, {})
    assert value["read_from"] == "pages of its documentation"
    with pytest.raises(SystemExit, match="--version"):
        main(["--out", str(tmp_path), str(tmp_path)])


def test_records_lack_what_a_version_does_not_have() -> None:
    names = {"pkg:Made": found("Made"), "pkg:Made.go": found("Made.go")}
    whole = Record("pkg", "1", "a wheel", False, names)
    assert whole.lacks({"pkg:Made": ("first",), "pkg:Made.go": ("one",)}, {}) == []
    assert whole.lacks({"pkg:Made.go": ("five",)}, {"pkg:Made": ("breadth",)}) == [
        "pkg:Made.go has no parameter five",
        "pkg:Made has no attribute breadth",
    ]
    assert whole.lacks({"pkg:Other": ()}, {"pkg:More": ()}) == ["no pkg:Other", "no pkg:More"]
    part = Record("pkg", "1", "a page", True, names)
    assert part.lacks({"pkg:Other": ()}, {"pkg:More": ()}) == []


def test_records_are_in_the_order_of_versions() -> None:
    found = [it.version for it in signatures.records("tensorrt_llm")]
    assert found == ["1.2.1", "1.3.0rc27", "1.3.0rc28"]
    assert [it.version for it in signatures.records("vllm")] == ["0.32.0", "0.33.0"]


def test_another_version_is_told_and_one_that_lacks_something_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = {"json:JSONDecoder.decode": ("s",)}
    check_installed("vllm", "0.33.0+cpu", calls)
    assert "engine_version_not_read" not in capsys.readouterr().out
    check_installed("vllm", "9.0.0", calls)
    assert "engine_version_not_read" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"has no parameter t; .* was read: 0\.32\.0, 0\.33\.0"):
        check_installed("vllm", "9.0.0", {"json:JSONDecoder.decode": ("s", "t")})
    with pytest.raises(ConfigError, match="no json:Other"):
        check_installed("vllm", "9.0.0", {"json:Other": ()})
