"""The example files: valid, and of services that find each other on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.cli.local.settings import config_class
from outrider.config import load
from tests.cli.invoking import invoke

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
ROLES = ("edge", "router", "tokenizer", "inference")
ALL_ROLES = (*ROLES, "tokenizer_worker")


def example(role: str) -> Any:
    return load(config_class(role), role, file=EXAMPLES / f"{role}.toml", environ={})


@pytest.mark.parametrize("role", ALL_ROLES)
def test_an_example_is_valid(role: str) -> None:
    result = invoke(["config", "validate", str(EXAMPLES / f"{role}.toml")])
    assert result.exit_code == 0, result.output


def test_the_examples_meet_each_other() -> None:
    router = example("router")
    assert example("edge").routers == (f"127.0.0.1:{router.port}",)
    assert router.tokenizers == (f"127.0.0.1:{example('tokenizer').port}",)
    assert example("tokenizer_worker").services == (
        f"127.0.0.1:{example('tokenizer').worker_port}",
    )
    (replica,) = router.replicas
    inference = example("inference")
    assert replica.address == f"127.0.0.1:{inference.port}"
    assert (replica.name, replica.region) == (inference.replica, inference.region)


@pytest.mark.parametrize("role", ROLES)
def test_the_ports_of_the_examples_are_the_defaults(role: str) -> None:
    assert example(role).port == config_class(role)().port
