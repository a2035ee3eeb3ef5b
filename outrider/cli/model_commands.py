"""`outrider models`: the commands of several modules, in one group."""

from __future__ import annotations

from outrider.cli import definitions, mirrors
from outrider.cli.models import app

app.command()(definitions.add)
app.command()(definitions.forget)
app.command()(mirrors.manifest)
app.command()(mirrors.push)
app.command()(mirrors.serve)
