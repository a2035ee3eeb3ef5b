"""`outrider config`: what a service would run with, every key, and files that are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import ConfigError, OutriderError
from tests.cli.invoking import invoke

SECRET = "0123456789abcdef0123456789abcdef"


def run(*arguments: str, **environment: str) -> str:
    result = invoke(["config", *arguments], env=environment)
    if isinstance(result.exception, OutriderError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_show_tells_what_file_environment_and_flags_come_to(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text(f'[edge]\nname = "a"\ncache_salt_key = "{SECRET}"\n')
    shown = run(
        *("show", "edge", "--config", str(file), "--set", "port=5000"),
        OUTRIDER_EDGE_DRAFTER_THREADS="2",
    )
    assert 'name = "a"  # default: "edge"' in shown
    assert "port = 5000  # default: 4433" in shown
    assert "threads = 2  # default: 1" in shown
    assert SECRET not in shown and "# cache_salt_key is set, and not shown" in shown


@pytest.mark.parametrize("role", ["edge", "router", "tokenizer", "tokenizer-worker", "inference"])
def test_the_defaults_of_a_role_are_a_valid_file(role: str, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(run("defaults", role))
    table = role.replace("-", "_")
    assert run("validate", str(file)) == f"{file}: [{table}] well\n"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[edge]\nprot = 1\n", "did you mean port"),
        ("[edge]\nport = 1\n[router]\nport = 'x'\n", r"\[router\] port: expected int"),
        ("[edges]\nport = 1\n", r"table \[edges\], which no service reads"),
        ("", "is empty"),
        ("[edge", "not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=wrong):
        run("validate", str(file))


def test_the_environment_is_no_part_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[router]\nport = 7100\n")
    assert "[router] well" in run("validate", str(file), OUTRIDER_ROUTER_PORT="nonsense")
