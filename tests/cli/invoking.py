"""The command line, run in the test's own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.testing import CliRunner, Result

from outrider.cli.main import app_for


def invoke(arguments: Sequence[str], **options: Any) -> Result:
    """What `outrider` with these arguments prints and ends with; options as CliRunner's."""
    return CliRunner().invoke(app_for(arguments), arguments, **options)
