"""Prompts from the command line: what is taken, and what is refused in one sentence."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from outrider.access.client_key import KEY_VARIABLE
from outrider.cli import edge_choice
from outrider.cli.prompting import options
from outrider.cli.prompting.options import read_prompts, read_tools
from outrider.errors import InvalidRequestError, InvalidSamplingError, OutriderError
from outrider.sampling.grammar import JSON_OBJECT, Grammar, GrammarKind
from tests.cli.invoking import invoke


def test_one_prompt_from_any_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_prompts("hi", None, None) == ["hi"]
    assert read_prompts(None, "hi", None) == ["hi"]
    assert read_prompts(None, None, None) == []
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("grüß\nGott\n".encode())))
    assert read_prompts(None, "-", None) == ["grüß\nGott\n"]


def test_what_is_piped_in_is_one_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("grüß\nGott\n".encode())))
    assert options.piped_prompt() == "grüß\nGott"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b" \n")))
    with pytest.raises(InvalidRequestError, match="no prompt was given"):
        options.piped_prompt()


def test_a_file_has_one_json_string_per_line_whatever_is_in_them(tmp_path: Path) -> None:
    # U+2028, U+0085 and the like end a line for str.splitlines, and stand unescaped in JSON.
    prompts = ["one", "two\u2028lines", "next\u0085line", "form\x7ffeed", "", "tab\there"]
    file = tmp_path / "prompts.jsonl"
    lines = [json.dumps(prompt, ensure_ascii=False) for prompt in prompts]
    file.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    assert read_prompts(None, None, file) == prompts
    file.write_bytes("\r\n".join(lines).encode())
    assert read_prompts(None, None, file) == prompts


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no prompt"),
        (b"\n \n", "holds no prompt"),
        (b'"\xff"', "UTF-8"),
    ],
)
def test_files_that_are_none(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=says):
        read_prompts(None, None, file)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hello", "line 2 is not a JSON string"),
        ('{"b": 1}', "line 2 is JSON, but not a string"),
        ('"\\ud800"', "line 2: .*lone surrogate"),
        ("[" * 100_000, "line 2 is not a JSON string"),
    ],
)
def test_a_line_that_holds_no_prompt_is_named_and_the_rest_stays(
    line: str, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'"one"\n{line}\n"three"\n', "utf-8")
    one, two, three = read_prompts(None, None, file)
    assert (one, three) == ("one", "three")
    assert isinstance(two, options.NoPrompt)
    assert re.search(says, two.message)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompts\.jsonl"):
        read_prompts(None, None, tmp_path / "prompts.jsonl")


def test_input_that_is_no_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    with pytest.raises(InvalidRequestError, match="standard input is not UTF-8"):
        read_prompts(None, "-", None)


def test_an_argument_that_is_no_utf8() -> None:
    # What Python makes of bytes on the command line that are no UTF-8 (PEP 383).
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        read_prompts(b"\xff".decode(errors="surrogateescape"), None, None)


@pytest.mark.parametrize(
    "given", [("a", "b", None), ("a", None, Path("c")), (None, "b", Path("c"))]
)
def test_two_places_at_once(given: tuple[str | None, str | None, Path | None]) -> None:
    with pytest.raises(InvalidRequestError, match="one of"):
        read_prompts(*given)


@pytest.mark.parametrize(
    "edge",
    ["nowhere", ":4433", "here:0", "here:99999", "here:http", "here:1?tcp=", "here:1?tcp=0"],
)
def test_edges_that_are_none(edge: str) -> None:
    done = invoke(["chat", "hi", "--edge", edge])
    assert isinstance(done.exception, OutriderError)
    assert "HOST:PORT" in done.exception.message


def test_a_key_is_read_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert edge_choice.given_key(None, None) == ""
    assert edge_choice.given_key(None, " from a flag ") == "from a flag"
    monkeypatch.setenv(KEY_VARIABLE, "from the environment\n")
    assert edge_choice.given_key(None, None) == "from the environment"
    file = tmp_path / "key"
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        edge_choice.given_key(file, None)
    with pytest.raises(InvalidRequestError, match="either --api-key or --key-file"):
        edge_choice.given_key(file, "x")
    file.write_text("\n")
    with pytest.raises(InvalidRequestError, match="holds no API key"):
        edge_choice.given_key(file, None)
    file.write_text("from a file\n")
    assert edge_choice.given_key(file, None) == "from a file"
    assert "file" not in repr(edge_choice.Caller(edge_choice.given_key(file, None)))


def test_objects_need_prompts() -> None:
    done = invoke(["chat", "--json", "--edge", "localhost:1"])
    assert isinstance(done.exception, OutriderError)
    assert "--prompt" in done.exception.message
    assert done.stdout == ""


def test_log_probabilities_need_json() -> None:
    options.check_logprobs(3, as_json=True)
    options.check_logprobs(-1, as_json=False)
    with pytest.raises(InvalidRequestError, match="needs --json"):
        options.check_logprobs(0, as_json=False)


def test_a_prediction_is_the_file_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "prediction.txt"
    file.write_bytes("é\r\nline\n".encode())
    assert options.read_text(file) == "é\r\nline\n"
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        options.read_text(file)


def test_grammars_from_files_and_flags(tmp_path: Path) -> None:
    schema, lark = tmp_path / "schema.json", tmp_path / "words.lark"
    schema.write_text('{"type": "string"}', encoding="utf-8")
    lark.write_text('start: "ä"', encoding="utf-8")
    none = {"json_schema": None, "regex": None, "lark": None, "json_object": False}
    assert options.grammar(**none) is None  # type: ignore[arg-type]
    for given, expected in (
        ({"json_schema": schema}, Grammar(GrammarKind.JSON_SCHEMA, '{"type": "string"}')),
        ({"lark": lark}, Grammar(GrammarKind.LARK, 'start: "ä"')),
        ({"regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"json_object": True}, JSON_OBJECT),
    ):
        assert options.grammar(**none | given) == expected
    with pytest.raises(InvalidRequestError, match="one of"):
        options.grammar(schema, "a+", None, json_object=False)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        options.grammar(tmp_path / "gone.json", None, None, json_object=False)
    schema.write_bytes(b"\xff")
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        options.grammar(schema, None, None, json_object=False)
    schema.write_text("[1", encoding="utf-8")
    with pytest.raises(InvalidSamplingError, match="not valid JSON"):
        options.grammar(schema, None, None, json_object=False)


def test_tools_come_from_a_file_in_either_shape(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    plain = {"name": "now", "parameters": {"type": "object"}}
    file.write_text(json.dumps([plain, {"type": "function", "function": {"name": "f"}}]))
    assert read_tools(file) == ('{"name":"now","parameters":{"type":"object"}}', '{"name":"f"}')
    assert read_tools(None) == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "not hold a list of tools"),
        ("[]", "not hold a list of tools"),
        ("[", "is not JSON"),
        ("[1]", "a tool is a JSON object"),
        ('[{"name": "f"}, {"name": "f"}]', "twice"),
    ],
)
def test_files_without_tools_are_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(text)
    with pytest.raises(InvalidRequestError, match=why):
        read_tools(file)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_tools(tmp_path / "none.json")
