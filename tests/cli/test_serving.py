"""What the supervisor asks processes of its mesh, over real sockets."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from outrider.cli.local.serving import Asking
from outrider.config_following import Verdict
from outrider.errors import UnavailableError
from outrider.process import Ports
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.config import AdminConfig
from outrider.telemetry.metrics import Metrics


@dataclass
class File:
    """A file that is followed."""

    verdict: Verdict | None = None


@pytest.mark.parametrize("is_followed", [True, False])
async def test_a_refusal_counts_for_what_the_file_holds_now(
    tmp_path: Path, is_followed: bool
) -> None:
    path, file, metrics = tmp_path / "edge.toml", File(), Metrics("edge")
    admin = AdminServer(
        AdminConfig(),
        ready=lambda: (True, ""),
        registry=metrics.registry,
        file=file if is_followed else None,
    )
    ports = Ports(1, await admin.start())
    asking = Asking(tmp_path, "127.0.0.1")
    path.write_text("models = []")
    digest = sha256(b"models = []").hexdigest()
    try:
        assert await asking.refused(ports, path) == "", "it was not read yet"
        file.verdict = Verdict(digest, "models is empty")
        assert await asking.refused(ports, path) == ("models is empty" if is_followed else "")
        path.write_text('models = ["a"]')
        assert await asking.refused(ports, path) == "", "that was another file"
        path.unlink()
        assert await asking.refused(ports, path) == ""
    finally:
        await admin.stop()
        metrics.close()
    path.write_text("models = []")
    assert await asking.refused(ports, path) == "", "nobody is there"
    with pytest.raises(UnavailableError, match="does not answer /metrics"):
        await asking.serves("edge", ports, "a")
