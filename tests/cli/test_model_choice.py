"""What `--model` means, and what a mesh on this machine is told of models."""

from __future__ import annotations

import hashlib
import tarfile
import tomllib
from pathlib import Path

import pytest

from outrider.cli.local import mesh, settings
from outrider.cli.local.mesh import ROLES, MeshOptions, ServedModel
from outrider.cli.local.preparing import fetched
from outrider.cli.model_choice import choose, choose_all, is_name, served_name
from outrider.errors import (
    ArtifactMissingError,
    ConfigError,
    InvalidRequestError,
    SourceError,
    UnknownModelError,
)
from outrider.models.catalog import DEFAULT_MODEL, lookup, read_config_file
from outrider.models.definitions import as_table
from outrider.models.store import ModelStore
from tests.cli.invoking import invoke
from tests.models.test_folder import write_folder


@pytest.fixture(autouse=True)
def user(user_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    user_models.parent.mkdir()
    user_models.write_text('[models.mine]\nsource = "file:/mine.gguf"\n', "utf-8")
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return user_models


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "Some Model.gguf"
    file.write_bytes(b"weights")
    return file


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        *(("", True), ("mine", True), ("qwen3-0.6b", True), ("a.b.c", True)),
        *(("m.gguf", False), ("./m", False), ("/a:b/m", False), ("~/m.gguf", False)),
        *(("file:m", False), ("hf:o/r@main#f.gguf", False), ("https://h/m.gguf", False)),
    ],
)
def test_names_have_neither_slash_nor_colon(model: str, expected: bool) -> None:
    assert is_name(model) is expected


def test_names_are_looked_up() -> None:
    assert choose("").spec is DEFAULT_MODEL
    assert choose("mine").spec.source == "file:/mine.gguf"
    assert [spec.name for spec in choose("mine").definitions] == ["mine"]
    with pytest.raises(UnknownModelError, match="smollm2"):
        choose("nobody's")


def test_a_file_gets_a_definition_of_its_own(weights: Path) -> None:
    for model in (str(weights), f"./{weights.name}", weights.name, f"file:{weights}"):
        chosen = choose(model)
        assert chosen.spec.name == "some-model"
        assert chosen.spec.source == f"file:{weights}"
        assert chosen.spec.sha256 == hashlib.sha256(b"weights").hexdigest()
        assert [spec.name for spec in chosen.definitions] == ["mine", "some-model"]
        assert lookup("some-model") is chosen.spec, "this process knows it by its name"


def test_a_file_that_has_changed_is_taken_anew(weights: Path, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "store")
    for content in (b"weights", b"other weights"):
        weights.write_bytes(content)
        spec = choose(str(weights)).spec
        assert store.ensure(spec.source, sha256=spec.sha256).path.read_bytes() == content


def test_a_folder_that_has_changed_is_taken_anew(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "store")
    for graph in ("<net/>", "<net><layers/></net>"):
        folder = write_folder(tmp_path / "Some Folder", **{"openvino_model.xml": graph})
        for model in (f"{folder}/", f"dir:{folder}"):
            spec = choose(model).spec
            assert (spec.name, spec.source) == ("some-folder", f"dir:{folder}")
            artifact = store.ensure(spec.source, sha256=spec.sha256)
            assert artifact.sha256 == spec.sha256
            with tarfile.open(artifact.path) as archive:
                file = archive.extractfile("openvino_model.xml")
                assert file is not None and file.read() == graph.encode()


def test_a_folder_that_is_no_model_is_told_what_it_lacks(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", **{"config.json": None})
    with pytest.raises(SourceError, match=r"lacks config\.json"):
        choose(str(folder))
    assert choose(f"dir:{tmp_path}/gone").spec.sha256 == "", "the store may hold it"


def test_a_name_that_is_taken_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(b"weights")
    spec = choose("mine.gguf").spec
    assert spec.name.startswith("mine-")
    assert lookup("mine").source == "file:/mine.gguf"


def test_a_source_gets_one_too() -> None:
    spec = choose("hf:Org/Repo@main#File.Q8_0.gguf").spec
    assert (spec.name, spec.sha256) == ("file.q8_0", "")


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        ("gone.gguf", ArtifactMissingError, "gone.gguf does not exist"),
        ("./gone", ArtifactMissingError, "./gone does not exist"),
        ("hf:not/a/repo", ConfigError, "write hf:"),
        ("ftp://host/m", ConfigError, "write pypi:"),
    ],
)
def test_what_is_no_model(model: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        choose(model)
    result = invoke(["reference", "--model", model, "hello"])
    assert isinstance(result.exception, error)


def _edge_config(folder: Path, model: str) -> Path:
    chosen = choose(model)
    options = MeshOptions(
        models=(ServedModel("first"), ServedModel(chosen.spec.name)),
        definitions={
            "first": {"source": "file:/first.gguf"},
            **{it.name: as_table(it) for it in chosen.definitions},
        },
    )
    options = mesh.load(mesh.dump(options))
    file = folder / "edge.toml"
    file.write_text(
        mesh.to_toml(mesh.edges(options, [7200], folder)[0], options.definitions), "utf-8"
    )
    return file


def test_a_mesh_keeps_the_definitions_it_was_started_with(
    weights: Path, tmp_path: Path, user: Path
) -> None:
    file = _edge_config(tmp_path, str(weights))
    assert tomllib.loads(file.read_text("utf-8"))["edge"]["models"] == ["first", "some-model"]
    user.write_text("", "utf-8")
    by_name = {spec.name: spec for spec in read_config_file(file)}
    assert set(by_name) == {"first", "mine", "some-model"}
    assert by_name["some-model"].sha256 == hashlib.sha256(b"weights").hexdigest()


def test_a_mesh_is_asked_by_names_only(weights: Path, tmp_path: Path) -> None:
    file = _edge_config(tmp_path, str(weights))
    assert [served_name(name, file) for name in ("", "some-model")] == ["", "some-model"]
    with pytest.raises(UnknownModelError, match="serves first, some-model, not nosuch"):
        served_name("nosuch", file)
    assert served_name(str(weights), file) == "some-model"
    assert served_name(f"file:{weights}", file) == "some-model"
    with pytest.raises(
        UnknownModelError, match=r"serves first, some-model, not .*outrider down.*--model hf:o/r"
    ):
        served_name("hf:o/r@main#f.gguf", file)
    with pytest.raises(ConfigError, match="does not say what the mesh serves"):
        served_name(str(weights), tmp_path / "gone.toml")
    for model in (str(weights), "hf:o/r@main#f"):
        result = invoke(["chat", "--edge", "localhost:1", "--model", model, "hello"])
        assert isinstance(result.exception, InvalidRequestError)
        assert "give a model's name" in str(result.exception)


def test_up_fetches_model_and_draft_and_pins_them(
    weights: Path, tmp_path: Path, user: Path
) -> None:
    source = f'source = "file:{weights}"\n'
    config = tmp_path / "mesh.toml"
    config.write_text(f'[edge]\nport = 1\n[models.large]\n{source}draft = "small"\n', "utf-8")
    user.write_text(f"[models.small]\n{source}", "utf-8")
    chosen = choose("large", config)
    options = MeshOptions(
        (ServedModel("large"),),
        definitions={spec.name: as_table(spec) for spec in chosen.definitions},
        tables=settings.read(config, ROLES),
    )
    assert options.tables == {"edge": {"port": 1}}
    drafts = [chosen.spec.draft]
    pinned = fetched([chosen.spec], drafts, options.definitions)
    assert pinned["large"]["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert set(pinned) == {"small", "large"}
    assert len(ModelStore(tmp_path / "store").list()) == 1


def test_several_are_chosen_each_by_a_name_of_its_own(weights: Path, tmp_path: Path) -> None:
    other = tmp_path / "folder" / weights.name
    other.parent.mkdir()
    other.write_bytes(b"other weights")
    chosen = choose_all([str(weights), "mine", str(other)])
    names = [spec.name for spec in chosen.specs]
    assert names[:2] == ["some-model", "mine"]
    assert names[2].startswith("some-model-")
    assert {*names} <= {spec.name for spec in chosen.definitions}
    for twice in ([str(weights), f"file:{weights}"], ["mine", "mine"], [str(weights)] * 2):
        with pytest.raises(ConfigError, match="named twice"):
            choose_all(twice)
