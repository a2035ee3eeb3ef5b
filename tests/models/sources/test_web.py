"""Web sources against a real server: ranges, retries, redirects, tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ArtifactCorruptError, SourceError
from outrider.models.disk.fetch import PartialFetch, ignore_progress
from outrider.models.sources import parse_source
from outrider.models.sources.web import MAX_ATTEMPTS, WebSource
from outrider.models.store import ModelStore
from tests.models.sources.web_server import Site, serve

BODY = bytes(range(256)) * 100


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Site(body=BODY)) as running:
        yield running


def fetch(site: Site, folder: Path) -> bytes:
    partial = PartialFetch(folder / "part", max_bytes=1 << 20, report=ignore_progress)
    with partial:
        WebSource("the model", f"{site.url}/model", backoff_s=0.0).fetch(partial, folder)
        partial.finish()
    return partial.path.read_bytes()


def test_a_file_is_fetched(site: Site, tmp_path: Path) -> None:
    assert fetch(site, tmp_path) == BODY
    ((path, headers),) = site.requests
    assert path == "/model"
    assert headers["accept-encoding"] == "identity"
    assert "range" not in headers


AGAIN, ON = None, "bytes=10000-"
DATE = "Sat, 21 Nov 2026 08:00:00 GMT"


@pytest.mark.parametrize(
    ("site_is", "becomes", "body", "ranges"),
    [
        pytest.param({"cuts": [10_000, 5_000]}, {}, BODY, [ON, "bytes=15000-"], id="goes on"),
        pytest.param(
            {"etag": None, "last_modified": DATE}, {}, BODY, [ON], id="the date is the validator"
        ),
        pytest.param({"etag": None}, {}, BODY, [AGAIN], id="no validator"),
        pytest.param({"etag": 'W/"weak"'}, {}, BODY, [AGAIN], id="a weak validator"),
        pytest.param(
            {}, {"body": BODY[::-1], "etag": '"v2"'}, BODY[::-1], [ON], id="it changed meanwhile"
        ),
        # The server, or a cache before it, answers ranges whatever the condition.
        pytest.param(
            {"ignores_conditions": True},
            {"body": BODY[::-1], "etag": '"v2"'},
            *(BODY[::-1], [ON, AGAIN]),
            id="two versions are not spliced",
        ),
        pytest.param({"ignores_ranges": True}, {}, BODY, [ON], id="a server without ranges"),
        # It shrank under an unchanged ETag: the server answers 416.
        pytest.param({}, {"body": BODY[:5_000]}, BODY[:5_000], [ON, AGAIN], id="it shrank"),
    ],
)
def test_a_broken_connection_costs_what_has_to_be_fetched_again(
    site_is: dict[str, Any],
    becomes: dict[str, Any],
    body: bytes,
    ranges: list[str | None],
    site: Site,
    tmp_path: Path,
) -> None:
    def change() -> None:
        for name, value in becomes.items():
            setattr(site, name, value)

    for name, value in ({"cuts": [10_000]} | site_is).items():
        setattr(site, name, value)
    site.at_cut = change
    assert fetch(site, tmp_path) == body
    assert site.ranges == [None, *ranges]


@pytest.mark.parametrize("span", ["bytes 0-9/10", "bytes 9999-25599/25600", "nonsense"])
def test_another_range_than_asked_is_refused(site: Site, tmp_path: Path, span: str) -> None:
    site.cuts, site.content_range = [10_000], span
    with pytest.raises(SourceError, match="asked for"):
        fetch(site, tmp_path)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_passing_failure_is_retried(site: Site, tmp_path: Path, status: int) -> None:
    site.statuses = [status, status]
    assert fetch(site, tmp_path) == BODY


@pytest.mark.parametrize(("status", "hint"), [(404, "address"), (401, "HF_TOKEN"), (403, "HF_TO")])
def test_a_lasting_failure_is_not_retried(
    site: Site, tmp_path: Path, status: int, hint: str
) -> None:
    site.statuses = [status]
    with pytest.raises(SourceError, match=f"{status}.*{hint}"):
        fetch(site, tmp_path)
    assert len(site.requests) == 1


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with serve(Site()) as site:
        pass
    with pytest.raises(SourceError, match="refused"):
        fetch(site, tmp_path)


def test_a_failure_before_the_first_byte_keeps_the_earlier_part(site: Site, tmp_path: Path) -> None:
    site.cuts = [1_000] * MAX_ATTEMPTS
    with pytest.raises(SourceError, match=f"{MAX_ATTEMPTS} attempts"):
        fetch(site, tmp_path)
    site.statuses = [404]
    with pytest.raises(SourceError):
        fetch(site, tmp_path)
    assert fetch(site, tmp_path) == BODY
    assert site.ranges[-1] == f"bytes={1_000 * MAX_ATTEMPTS}-"


def test_a_token_stays_with_its_hub(site: Site, tmp_path: Path) -> None:
    """The hub redirects to its storage: the token goes to the hub, never to the storage."""
    with serve(Site(redirect=f"{site.url}/storage")) as hub:
        environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret"}
        source = parse_source("hf:org/repo@main#model.gguf", environ)
        with PartialFetch(tmp_path / "part", max_bytes=1 << 20, report=ignore_progress) as partial:
            source.fetch(partial, tmp_path)
            partial.finish()
    ((path, headers),) = hub.requests
    assert path == "/org/repo/resolve/main/model.gguf"
    assert headers["authorization"] == "Bearer hf_secret"
    assert "authorization" not in site.requests[0][1]


def test_a_token_follows_a_redirect_inside_the_hub(tmp_path: Path) -> None:
    hub = Site(redirect="/renamed")
    with serve(hub):
        source = WebSource("the model", f"{hub.url}/model", token="hf_secret", backoff_s=0.0)
        with (
            pytest.raises(SourceError, match="302"),
            PartialFetch(tmp_path / "part", max_bytes=1, report=ignore_progress) as partial,
        ):
            source.fetch(partial, tmp_path)
    assert {headers["authorization"] for _, headers in hub.requests} == {"Bearer hf_secret"}
    assert len(hub.requests) > 1


@pytest.mark.parametrize("target", ["http://example.org/model", "ftp://example.org/x"])
def test_a_redirect_away_from_https_is_refused(tmp_path: Path, target: str) -> None:
    with serve(Site(redirect=target)) as site, pytest.raises(SourceError, match="refused"):
        fetch(site, tmp_path)


def test_bytes_must_meet_the_digest_the_hub_claims(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = {"X-Linked-Etag": f'"{"0" * 64}"'}
    with serve(Site(redirect=f"{site.url}/storage", redirect_headers=claim)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        store = ModelStore(tmp_path / "store")
        with pytest.raises(ArtifactCorruptError, match="origin says"):
            store.pull("hf:org/repo@main#model.gguf")
        assert store.list() == ()
