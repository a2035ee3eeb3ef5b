"""Configurations as text: complete, explained, read back to the same values, without secrets."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.local.settings import config_class
from outrider.config import load
from outrider.config_text import changed_values, defaults_text, effective_text, is_secret

ROLES = ("edge", "router", "tokenizer", "tokenizer_worker", "inference")


def loaded(cls: Any, role: str, file: Path, text: str) -> Any:
    file.write_text(text)
    return load(cls, role, file=file, environ={})


@pytest.mark.parametrize("role", ROLES)
def test_the_defaults_are_read_back_as_they_are(role: str, tmp_path: Path) -> None:
    cls = config_class(role)
    assert loaded(cls, role, tmp_path / "x.toml", defaults_text(cls, role)) == cls()


@pytest.mark.parametrize("role", ROLES)
def test_every_key_is_in_the_defaults(role: str) -> None:
    lines = defaults_text(config_class(role), role).splitlines()
    for field in fields(config_class(role)):
        keys = (f"{field.name} = ", f"# {field.name} =", f"[{role}.{field.name}]")
        assert any(line.startswith(keys) for line in lines), field.name


def test_a_key_is_explained_by_its_docstring() -> None:
    lines = defaults_text(config_class("edge"), "edge").splitlines()
    at = lines.index("port = 4433")
    assert lines[at - 1] == "# UDP port of the QUIC listener; 0: any free one."


@dataclass(frozen=True)
class Inner:
    num_rows: int = 3
    api_key: str = ""


@dataclass(frozen=True)
class Tenant:
    name: str
    share: float = 1.0


@dataclass(frozen=True)
class Outer:
    address: str
    text: str = "a"
    folder: Path | None = None
    names: tuple[str, ...] = ()
    inner: Inner = Inner()
    tenants: tuple[Tenant, ...] = ()


CHANGED = """
[outer]
address = "here:1"
text = 'quote " and \\ and newline \\n'
folder = "/tmp"
names = ["a", "b"]
[outer.inner]
num_rows = 5
[[outer.tenants]]
name = "one"
[[outer.tenants]]
name = "two"
share = 0.5
"""


def test_what_is_shown_is_read_back_and_says_what_was_changed(tmp_path: Path) -> None:
    config = loaded(Outer, "outer", tmp_path / "x.toml", CHANGED)
    text = effective_text(config, "outer")
    assert loaded(Outer, "outer", tmp_path / "y.toml", text) == config
    assert "num_rows = 5  # default: 3" in text and 'folder = "/tmp"  # default: none' in text
    assert changed_values(config) == {
        "address": "here:1",
        "text": config.text,
        "folder": "/tmp",
        "names": ("a", "b"),
        "inner.num_rows": 5,
        "tenants": 2,
    }


def test_a_key_without_default_is_to_be_given() -> None:
    assert "# address =  # must be given" in defaults_text(Outer, "outer")


def test_secrets_are_not_shown() -> None:
    config = Outer("here:1", inner=Inner(api_key="s3cr3t"))
    assert "s3cr3t" not in effective_text(config, "outer")
    assert changed_values(config) == {"address": "here:1", "inner.api_key": "set"}
    assert is_secret("shared_cache.key") and not is_secret("private_key")
