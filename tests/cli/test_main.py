"""The command line as a whole: every subcommand and flag of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
import typer
from typer.models import OptionInfo

from outrider.cli.main import app_for
from tests.cli.invoking import invoke


def commands(of: typer.Typer, path: str) -> Iterator[tuple[str, Any]]:
    """What runs for each command, with what a user types for it."""
    for command in of.registered_commands:
        assert command.callback is not None
        yield f"{path} {command.name or command.callback.__name__}", command.callback
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{path} {group.name}")


COMMANDS = dict(commands(app_for([]), "outrider"))


def flags() -> Iterator[tuple[str, type, OptionInfo]]:
    """Each flag's name, the type of its value, and what is known of it."""
    for path, callback in COMMANDS.items():
        for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
            assert get_origin(parameter.annotation) is Annotated, f"{path} {name}"
            kind, info, *_ = get_args(parameter.annotation)
            if isinstance(info, OptionInfo):
                kinds = [it for it in (get_args(kind) or (kind,)) if it is not type(None)]
                yield f"{path} {name}", kinds[0], info


def test_every_number_has_bounds() -> None:
    numbers = [(name, info) for name, kind, info in flags() if kind in (int, float)]
    assert len(numbers) > 20
    for name, info in numbers:
        assert info.min is not None and info.max is not None, f"{name} has no bounds"
        assert info.min < info.max


def test_every_command_and_flag_is_explained() -> None:
    for path, callback in COMMANDS.items():
        assert callback.__doc__, f"{path} has no help"
    for name, _, info in flags():
        assert info.help, f"{name} has no help"


@pytest.mark.parametrize(
    ("arguments", "bound"),
    [
        (("tokenize", "a.txt", "--out", "b", "--workers", "-1"), "or equal to 0"),
        (("up", "--replicas", "0"), "or equal to 1"),
        (("up", "--port", "65536"), "or equal to 65535"),
        (("chat", "hi", "--temperature", "9"), "or equal to 2"),
        (("chat", "hi", "--temperature", "nan"), "or equal to 2"),
        (("chat", "hi", "--max-tokens", "2147483648"), "or equal to 2147483647"),
        (("explain", "--last", "0"), "or equal to 1"),
    ],
)
def test_a_number_out_of_bounds_names_the_flag_and_the_bound(
    arguments: tuple[str, ...], bound: str
) -> None:
    done = invoke(arguments)
    assert done.exit_code == 2
    told = " ".join(done.output.replace("\u2502", " ").split())
    assert f"Invalid value for '{arguments[-2]}'" in told
    assert bound in told
