"""Stages of loading an engine, reported as each begins: together they take seconds, and minutes on
a slow machine."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class LoadStage(StrEnum):
    """What is done now, in words for a user. An engine leaves out stages that it does not need."""

    READ = "loading the model"
    """Its files are read and verified, and its vocabulary is built."""
    CONVERT = "converting the weights"
    """The first time that a model is served, and after a release that converts otherwise."""
    COMPILE = "compiling the model"
    COMPARE = "comparing calls of different sizes"
    WARM_UP = "warming up"
    TURN_ENGINE = "waiting for the engine"
    """One that writes whole replies loads by itself, or is a server that has to answer."""


ReportStage: TypeAlias = Callable[[LoadStage], None]
"""Called in the thread that loads. What it raises ends the loading, and passes to the caller."""


def ignore_stage(stage: LoadStage) -> None:
    """For callers that show no progress."""
