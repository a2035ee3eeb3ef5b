"""What it takes to add a model to a mesh that runs, and to take one out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.cli.local import changes, mesh
from outrider.cli.local.mesh import MeshOptions, ProcessSpec, ServedModel
from outrider.errors import ConfigError, UnknownModelError

OPTIONS = MeshOptions(
    (ServedModel("a"), ServedModel("b", regions=("us-east",))),
    definitions={
        "a": {"source": "file:/a", "draft": "small"},
        "b": {"source": "file:/b"},
        "small": {"source": "file:/small"},
        "unused": {"source": "file:/unused"},
    },
)


def running(options: MeshOptions = OPTIONS) -> list[ProcessSpec]:
    """All processes of the mesh but the router and the edge."""
    return [*mesh.replicas(options), mesh.tokenizer(options)]


def test_one_more_model_is_served_by_replicas_of_its_own() -> None:
    change = changes.added(OPTIONS, ServedModel("c", 2), {"c": {"source": "file:/c"}}, running())
    assert [model.name for model in change.after.models] == ["a", "b", "c"]
    assert [spec.name for spec in change.start] == [
        "us-east-c-0",
        "us-east-c-1",
        "eu-west-c-0",
        "eu-west-c-1",
    ]
    assert {spec.values["model"] for spec in change.start} == {"c"}
    assert change.stop == ()
    assert change.before is OPTIONS
    assert change.after.definitions == {**OPTIONS.definitions, "c": {"source": "file:/c"}}


def test_names_of_running_replicas_are_not_given_again() -> None:
    change = changes.added(OPTIONS, ServedModel("a."), {}, running())
    assert [spec.name for spec in change.start] == ["us-east-a-1", "eu-west-a-1"]
    again = changes.added(change.after, ServedModel("a_"), {}, [*running(), *change.start])
    assert [spec.name for spec in again.start] == ["us-east-a-2", "eu-west-a-2"]


@pytest.mark.parametrize("name", ["a", "b"])
def test_no_model_is_served_twice(name: str) -> None:
    with pytest.raises(ConfigError, match=f"serves {name} already"):
        changes.added(OPTIONS, ServedModel(name), {}, running())


def test_what_is_in_use_is_not_defined_anew() -> None:
    for used in ("a", "b", "small"):
        with pytest.raises(ConfigError, match=f"another model as {used}"):
            changes.added(OPTIONS, ServedModel("c"), {used: {"source": "file:/new"}}, running())
    new = {"unused": {"source": "file:/new"}, "small": {"source": "file:/small"}}
    change = changes.added(OPTIONS, ServedModel("unused"), new, running())
    assert change.after.definitions["unused"] == {"source": "file:/new"}


def test_there_are_no_more_models_than_a_mesh_has_room_for() -> None:
    options = MeshOptions(tuple(ServedModel(f"m{n}") for n in range(mesh.MAX_MODELS)))
    with pytest.raises(ConfigError, match=f"1 to {mesh.MAX_MODELS} models"):
        changes.added(options, ServedModel("more"), {}, running(options))


def test_a_model_goes_with_its_replicas_and_what_only_it_needed() -> None:
    change = changes.removed(OPTIONS, "b", running())
    assert change.after.models == OPTIONS.models[:1]
    assert change.stop == ("us-east-b-0",)
    assert change.start == ()
    assert set(change.after.definitions) == {"a", "small", "unused"}


def test_a_draft_stays_as_long_as_a_model_needs_it() -> None:
    tables = {"c": {"source": "file:/c", "draft": "small"}, "d": {"source": "file:/d"}}
    two = changes.added(OPTIONS, ServedModel("c"), tables, running()).after
    assert "small" in changes.removed(two, "c", running(two)).after.definitions
    alone = MeshOptions((ServedModel("x"), ServedModel("a")), definitions=OPTIONS.definitions)
    assert set(changes.removed(alone, "a", running(alone)).after.definitions) == {"b", "unused"}


def test_the_default_stays() -> None:
    with pytest.raises(ConfigError, match="requests that name none"):
        changes.removed(OPTIONS, "a", running())


def test_lists_of_who_may_use_what_stay_as_they_are() -> None:
    """A list without a model that is served is of none, so that nothing is opened."""
    edge = {"anonymous_models": ["b"], "tenants": [{"name": "t", "models": ["b"]}]}
    options = replace(OPTIONS, tables={"edge": edge})
    assert changes.removed(options, "b", running(options)).after.tables == {"edge": edge}


def test_what_is_not_served_cannot_go() -> None:
    with pytest.raises(UnknownModelError, match="it serves a, b"):
        changes.removed(OPTIONS, "unused", running())


def test_live_keys_are_what_services_name_their_models_with() -> None:
    replicas = mesh.replicas(OPTIONS)
    ports = {spec.name: 1 for spec in replicas}
    assert changes.live(mesh.tokenizer(OPTIONS)) == {"models": ("a", "b")}
    found = changes.live(mesh.routers(OPTIONS, replicas, ports, 2)[0])
    assert set(found) == {"replicas"}
