"""Where definitions are read, which one counts, and that a request can name no source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider.errors import ConfigError, UnknownModelError
from outrider.models import catalog
from outrider.models.catalog import (
    DEFAULT_MODEL,
    MODELS_VARIABLE,
    SHIPPED,
    load_catalog,
    lookup,
    models_file,
    names,
    use,
)
from outrider.models.sources import parse_source


def test_the_empty_name_is_the_default() -> None:
    assert lookup("") is DEFAULT_MODEL
    assert lookup("smollm2-135m-instruct") is DEFAULT_MODEL


def test_an_unknown_name_is_told_which_there_are() -> None:
    with pytest.raises(UnknownModelError, match="smollm2-135m-instruct"):
        lookup("gpt-9")


@pytest.mark.parametrize("name", ["file:/etc/passwd", DEFAULT_MODEL.source, "x" * 10_000])
def test_a_request_cannot_name_a_source(name: str) -> None:
    with pytest.raises(UnknownModelError) as refused:
        lookup(name)
    assert len(refused.value.message) < 1000


def test_what_is_shipped_can_be_read_and_tells_what_was_run() -> None:
    for name in names():
        spec = lookup(name)
        assert spec.defined_in == "shipped"
        assert re.fullmatch("|[0-9a-f]{64}", spec.sha256)
        assert parse_source(spec.source).text == spec.source
        # Without a digest, or at a revision that moves, nobody can say that this file was run.
        assert not spec.tested or (spec.sha256 and "@main#" not in spec.source)
    assert lookup("").tested
    assert {"smollm2-1.7b-instruct", "qwen3-0.6b", "llama-3.2-1b-instruct"} < set(names())


def test_a_malformed_hub_address_hurts_nobody_who_fetches_nothing(
    monkeypatch: pytest.MonkeyPatch, user_models: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "gopher://hub")
    write(user_models, 'm = {source = "hf:o/r@main#f.gguf"}')
    assert load_catalog().lookup("m").source == "hf:o/r@main#f.gguf"


def write(file: Path, *tables: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[models]\n" + "\n".join(tables) + "\n", "utf-8")


def test_the_users_file_is_in_the_configuration_folder(tmp_path: Path) -> None:
    home = Path.home() / ".config/outrider/models.toml"
    assert models_file({}) == home
    assert models_file({"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "outrider/models.toml"
    assert models_file({MODELS_VARIABLE: "~/m.toml"}) == Path.home() / "m.toml"
    folder = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert load_catalog(environ=folder).names == SHIPPED.names
    write(tmp_path / "outrider/models.toml", 'mine = {source = "file:/m.gguf"}')
    assert load_catalog(environ=folder).lookup("mine").source == "file:/m.gguf"


def test_later_files_win_and_paths_are_relative_to_their_file(
    user_models: Path, tmp_path: Path
) -> None:
    write(
        user_models,
        'mine = {source = "file:weights/m.gguf", chat_template_file = "t.jinja"}',
        'other = {source = "file:/o.gguf"}',
        'folder = {source = "dir:weights/m"}',
        f'"{DEFAULT_MODEL.name}" = {{source = "file:/d.gguf"}}',
    )
    (user_models.parent / "t.jinja").write_text("{{ messages }}", "utf-8")
    config = tmp_path / "outrider.toml"
    config.write_text('[edge]\nport = 1\n[models.other]\nsource = "file:o2.gguf"\n', "utf-8")
    found = load_catalog(config)
    mine = found.lookup("mine")
    assert mine.source == f"file:{user_models.parent}/weights/m.gguf"
    assert mine.chat_template == "{{ messages }}"
    assert found.lookup("folder").source == f"dir:{user_models.parent}/weights/m"
    assert found.lookup("other").source == f"file:{tmp_path}/o2.gguf"
    assert found.lookup("other").defined_in == str(config)
    assert found.lookup("").source == "file:/d.gguf"
    assert DEFAULT_MODEL.source != "file:/d.gguf"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[models", "is not valid TOML"),
        ("[model.m]\n", "'model' is no table of a models file"),
        ("[models.m]\n", "source is missing"),
        ('[models.m]\nsource = "what"\n', r"\[models.m\] source: 'what' is no model source"),
        ('[models.m]\nsource = "file:/m"\nchat_template_file = "gone"\n', "cannot read .*gone"),
        ('[models.m]\nsource = "file:/m"\nchat_template_file = "a\\u0000b"\n', "no NUL"),
        ('[models.m]\nsource = "file:/m"\ndraft = "who"\n', "'who', the draft of m"),
    ],
)
def test_a_bad_file_is_named(user_models: Path, text: str, says: str) -> None:
    user_models.parent.mkdir()
    user_models.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=says) as refused:
        load_catalog()
    assert str(user_models) in refused.value.message


def test_files_that_cannot_be_read(user_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        load_catalog()  # a file that is named has to be there
    user_models.parent.mkdir()
    user_models.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_catalog()
    monkeypatch.setattr(catalog, "_MAX_FILE_BYTES", 4)
    user_models.write_text("# long")
    with pytest.raises(ConfigError, match="more than 4 bytes"):
        load_catalog()


def test_a_process_reads_once_unless_it_is_told(user_models: Path, tmp_path: Path) -> None:
    write(user_models, 'mine = {source = "file:/1.gguf"}')
    assert lookup("mine").source == "file:/1.gguf"
    write(user_models, 'mine = {source = "file:/2.gguf"}')
    assert lookup("mine").source == "file:/1.gguf"
    config = tmp_path / "config.toml"
    config.write_text("", "utf-8")
    use(load_catalog(config), config)
    assert lookup("mine").source == "file:/2.gguf"
    assert catalog.config_file() == config
    use(None)
    assert catalog.config_file() is None
