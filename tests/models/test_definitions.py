"""Definitions as tables: what is read, what is refused and in which words, and which one counts."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError, UnknownModelError
from outrider.models.definitions import (
    MAX_DEFINITIONS,
    MAX_STOP_TOKENS,
    MAX_TEMPLATE_CHARS,
    DefinitionsSource,
    EngineDefaults,
    ModelCatalog,
    ModelSpec,
    as_table,
    check_model_name,
    free_name,
    read_definitions,
    slug,
    to_toml,
)


def source_text(source: str) -> str:
    """Stands for the sources' own check."""
    if not source.startswith("file:/"):
        raise ConfigError("write file:/PATH")
    return source


PLACE = DefinitionsSource("here.toml", source_text)
SOURCE = "file:/m.gguf"


def read(**table: object) -> ModelSpec:
    (spec,) = read_definitions({"m": {"source": SOURCE, **table}}, PLACE)
    return spec


def test_a_source_is_enough() -> None:
    assert read() == ModelSpec("m", SOURCE)
    assert read().defined_in == "here.toml"


def test_everything_that_can_be_said() -> None:
    engine = {
        "precision": "f32",
        "dynamic_quantization": False,
        "max_fixed_rows": 0,
        "weight_bits": 4,
    }
    spec = read(
        sha256="ab" * 32,
        max_context_tokens=4096,
        chat_template="{{ messages }}",
        stop_tokens=["<|eot|>"],
        typed_markup=True,
        draft="none",
        engine=engine,
        tested=True,
    )
    assert spec == ModelSpec(
        name="m",
        source=SOURCE,
        sha256="ab" * 32,
        max_context_tokens=4096,
        chat_template="{{ messages }}",
        stop_tokens=("<|eot|>",),
        typed_markup=True,
        draft="none",
        engine=EngineDefaults("f32", False, 0, 4),
        tested=True,
    )
    assert spec.engine_settings() == {**engine, "max_context_tokens": 4096}
    assert read().engine_settings() == {}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a source that is none": ({"source": "ftp://x"}, "source: write file:/PATH"),
    "no text": ({"source": 7}, "source: expected a text"),
    "a long source": ({"source": "file:/" + "x" * 3000}, "source: expected a text of at most 2048"),
    "an unknown key": ({"sorce": SOURCE}, "sorce: unknown key; did you mean source"),
    "nothing like a key": ({"zzz": 1}, "zzz: unknown key; known keys: source, sha256"),
    "the name as a key": ({"name": "n"}, "name: unknown key"),
    "where it stands": ({"defined_in": "n"}, "defined_in: unknown key"),
    "a short digest": ({"sha256": "ab"}, "sha256: expected 64 lower-case"),
    "a loud digest": ({"sha256": "AB" * 32}, "sha256: expected 64 lower-case"),
    "a negative context": ({"max_context_tokens": -1}, "max_context_tokens: expected a whole"),
    "an absurd context": ({"max_context_tokens": 1 << 40}, "max_context_tokens: expected a whole"),
    "true is no number": ({"max_context_tokens": True}, "max_context_tokens: expected a whole"),
    "half a token": ({"max_context_tokens": 1.5}, "max_context_tokens: expected a whole"),
    "one stop token": ({"stop_tokens": "<|eot|>"}, "stop_tokens: expected a list"),
    "stop ids": ({"stop_tokens": [2]}, "stop_tokens: expected a list"),
    "an empty stop token": ({"stop_tokens": [""]}, "stop_tokens: expected texts of 1 to"),
    "a long stop token": ({"stop_tokens": ["x" * 257]}, "stop_tokens: expected texts of 1 to"),
    "a stop token of bytes": ({"stop_tokens": ["\udc80"]}, "stop_tokens: expected texts of 1 to"),
    "many stop tokens": (
        {"stop_tokens": ["x"] * (MAX_STOP_TOKENS + 1)},
        f"stop_tokens: expected a list of at most {MAX_STOP_TOKENS}",
    ),
    "a large template": (
        {"chat_template": "x" * (MAX_TEMPLATE_CHARS + 1)},
        "chat_template: expected a text of at most",
    ),
    "a template's file": ({"chat_template_file": "t"}, "chat_template_file: no files"),
    "a draft's path": ({"draft": "/d.gguf"}, "draft: '/d.gguf' cannot name a model"),
    "a draft that is no text": ({"draft": False}, "draft: expected a text"),
    "an engine": ({"engine": "openvino"}, "engine: must be a table"),
    "an engine's key": ({"engine": {"threads": 4}}, "engine threads: unknown key; known keys"),
    "an engine's typo": ({"engine": {"precison": 4}}, "engine precison: .* mean precision"),
    "a precision": (
        {"engine": {"precision": "f8"}},
        "engine.precision: expected one of auto, bf16",
    ),
    "a list of them": ({"engine": {"precision": ["f32"]}}, "engine.precision: expected one of"),
    "a number for a flag": (
        {"engine": {"dynamic_quantization": 1}},
        "engine.dynamic_quantization: expected true or false",
    ),
    "negative rows": ({"engine": {"max_fixed_rows": -1}}, "engine.max_fixed_rows: expected 0 to"),
    "three bits": ({"engine": {"weight_bits": 3}}, "engine.weight_bits: expected 4 or 8"),
    "true is no number of bits": (
        {"engine": {"weight_bits": True}},
        "engine.weight_bits: expected 4 or 8",
    ),
    "a tool parser that is none": (
        {"tool_parser": "pythonic"},
        "tool_parser: expected one of hermes, llama3_json, mistral, mistral_args",
    ),
    "markup by halves": ({"typed_markup": 1}, "typed_markup: expected true or false"),
    "tested by halves": ({"tested": "yes"}, "tested: expected true or false"),
}


@pytest.mark.parametrize(("table", "says"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_named_with_file_table_and_key(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"here\.toml \[models\.m\] {says}") as refused:
        read(**table)
    assert len(refused.value.message) < 500


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ([], "models must be tables"),
        ({"m": "file:/m.gguf"}, "models.m must be a table"),
        ({"m": {}}, "source is missing"),
        ({"M": {"source": SOURCE}}, "'M' cannot name a model"),
        ({"none": {"source": SOURCE}}, "means no draft"),
        ({"x" * 10_000: {"source": SOURCE}}, "cannot name a model"),
        ({f"m{i}": {"source": SOURCE} for i in range(MAX_DEFINITIONS + 1)}, "at most 256"),
    ],
)
def test_tables_that_define_nothing(tables: object, says: str) -> None:
    with pytest.raises(ConfigError, match=f"here.toml.*{says}") as refused:
        read_definitions(tables, PLACE)
    assert len(refused.value.message) < 500


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "ä", "a/b", "a:b", "a" * 65, "..", "a\n"])
def test_what_cannot_be_a_name(name: str) -> None:
    with pytest.raises(ConfigError, match=r"here: .*cannot name a model; use a-z"):
        check_model_name(name, "here")


def test_a_template_may_stand_in_a_file_of_the_place() -> None:
    place = DefinitionsSource(
        "here.toml", source_text, {"t.jinja": "{{ x }}", "empty": ""}.__getitem__
    )
    table = {"source": SOURCE, "chat_template_file": "t.jinja"}
    (spec,) = read_definitions({"m": table}, place)
    assert spec.chat_template == "{{ x }}"
    with pytest.raises(ConfigError, match="keep one of them"):
        read_definitions({"m": table | {"chat_template": "x"}}, place)
    with pytest.raises(ConfigError, match="empty has 0 characters"):
        read_definitions({"m": table | {"chat_template_file": "empty"}}, place)


NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True).filter(lambda it: it != "none")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TOKENS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
SPECS = st.builds(
    ModelSpec,
    name=NAMES,
    source=TEXT.map(lambda text: f"file:/{text}"),
    sha256=st.sampled_from(["", "0f" * 32]),
    max_context_tokens=st.integers(0, 1 << 20),
    chat_template=TEXT,
    stop_tokens=st.lists(TOKENS, max_size=4).map(tuple),
    draft=st.one_of(st.just(""), st.just("none"), NAMES),
    engine=st.builds(
        EngineDefaults,
        st.sampled_from([None, "auto", "bf16", "f32"]),
        st.sampled_from([None, True, False]),
        st.one_of(st.none(), st.integers(0, 64)),
    ),
    typed_markup=st.booleans(),
    tool_parser=st.sampled_from(["", "hermes", "mistral"]),
    tested=st.booleans(),
)


@given(st.lists(SPECS, max_size=5, unique_by=lambda spec: spec.name))
def test_what_is_written_is_what_is_read(specs: list[ModelSpec]) -> None:
    text = to_toml({spec.name: as_table(spec) for spec in specs})
    assert read_definitions(tomllib.loads(text).get("models", {}), PLACE) == specs


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)
KEYS = st.sampled_from([*ModelSpec.__slots__, "chat_template_file", "precision"]) | st.text()


@given(st.dictionaries(st.text(max_size=9), JSON | st.dictionaries(KEYS, JSON)) | JSON)
def test_whatever_stands_there_is_read_or_refused_by_a_config_error(tables: object) -> None:
    try:
        read_definitions(tables, PLACE)
    except ConfigError as error:
        assert error.message.startswith("here.toml")


@given(st.text())
def test_any_file_gives_a_name(file: str) -> None:
    check_model_name(slug(file), "here")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/models/Qwen3 0.6B-Q8_0.gguf", "qwen3-0.6b-q8_0"),
        ("hf:Org/Repo@main#sub/File.Q4_K_M.gguf", "file.q4_k_m"),
        ("./my-folder/", "my-folder"),
        ("/x/.gguf", "model"),
        ("/", "model"),
        ("/x/…", "model"),
        ("none.gguf", "model"),
    ],
)
def test_names_of_files(file: str, name: str) -> None:
    assert slug(file) == name


def test_a_files_name_that_is_taken_gets_a_part_of_the_sources_digest() -> None:
    catalog = ModelCatalog([ModelSpec("m", SOURCE)], "m")
    assert free_name("/n.gguf", "file:/n.gguf", catalog) == "n"
    taken = [free_name("/a/m.gguf", f"file:/{folder}/m.gguf", catalog) for folder in "ab"]
    assert len(set(taken)) == 2
    assert all(re.fullmatch("m-[0-9a-f]{8}", name) for name in taken)
    long = "x" * 64
    catalog = ModelCatalog([ModelSpec(long, SOURCE)], long)
    check_model_name(free_name(f"/{long}.gguf", SOURCE, catalog), "here")


def test_the_later_definition_counts() -> None:
    first, second = ModelSpec("m", "file:/1"), ModelSpec("m", "file:/2")
    catalog = ModelCatalog([first], "m").extended([second])
    assert catalog.lookup("m") is catalog.lookup("") is second
    assert (catalog.of_source("file:/1"), catalog.of_source("file:/2")) == (None, second)
    assert len(catalog) == 1


def test_a_catalog_has_room_for_so_many() -> None:
    specs = [ModelSpec(f"m{i}", SOURCE) for i in range(MAX_DEFINITIONS)]
    catalog = ModelCatalog(specs, "m0")
    with pytest.raises(ConfigError, match=r"257 models are defined; keep at most 256.*forget"):
        catalog.extended([ModelSpec("one-more", SOURCE)])
    with pytest.raises(UnknownModelError, match=r"m0, m1, .* and 240 more") as refused:
        catalog.lookup("y" * 10_000)
    assert len(refused.value.message) < 500


def test_a_draft_has_to_be_defined() -> None:
    with pytest.raises(ConfigError, match=r"'d', the draft of m .*is not defined; there is m"):
        ModelCatalog([ModelSpec("m", SOURCE, draft="d")], "m")
    with pytest.raises(ConfigError, match="'m', default, is not defined"):
        ModelCatalog([ModelSpec("d", SOURCE, draft="none")], "m")


def test_what_changes_a_vocabulary_has_a_key_of_its_own() -> None:
    specs = [
        ModelSpec("m", SOURCE, chat_template="a"),
        ModelSpec("m", SOURCE, chat_template="b"),
        ModelSpec("m", SOURCE, stop_tokens=("a",)),
        ModelSpec("m", SOURCE, stop_tokens=("a", "b")),
        ModelSpec("m", SOURCE, chat_template="a", stop_tokens=("a",)),
    ]
    assert len({spec.vocabulary_key() for spec in specs}) == len(specs)
    assert {spec.as_in_file().vocabulary_key() for spec in specs} == {""}
    both = [
        ModelSpec(n, SOURCE, stop_tokens=stops)
        for n, stops in (("m", ("a", "b")), ("n", ("b", "a")))
    ]
    assert both[0].vocabulary_key() == both[1].vocabulary_key()
