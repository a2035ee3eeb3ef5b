"""The parts of a split GGUF file behind URLs, fetched one after the other and joined.

Each part is resumed, and compared with the digest that its server claims, as a file by itself. A
part is deleted as soon as its tensors are in the joined file, so that the disk holds little more
than the model.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from outrider.errors import ArtifactCorruptError, SourceError
from outrider.models.disk.fetch import (
    COPY_BYTES,
    FetchPosition,
    PartialFetch,
    PullProgress,
    ReportProgress,
)
from outrider.models.disk.files import file_sha256
from outrider.models.sources.split_gguf import JoinedGguf, joined, part_names, read_in_pieces
from outrider.models.sources.web import Offer, WebSource


class SplitWebSource:
    """`https://.../NAME-00001-of-00003.gguf`, or such a hub file: the first of several parts, with
    the others beside it."""

    def __init__(self, text: str, url: str, *, token: str = "", backoff_s: float = 0.5) -> None:
        self._text = text
        self._url = urlsplit(url)
        self._token, self._backoff_s = token, backoff_s

    @property
    def text(self) -> str:
        """The canonical text; the token is no part of it."""
        return self._text

    def fetch(self, partial: PartialFetch, scratch: Path) -> str | None:
        """Fetch all parts, and write what they are joined to. No byte is fetched before each part
        is known to be there and to have room. Raises SourceError, which names a part that is
        missing, ArtifactCorruptError for one with a wrong digest and for parts that do not belong
        together, none of which are kept."""
        folder, _, first = self._url.path.rpartition("/")
        webs = {name: self._web(f"{folder}/{name}", name) for name in part_names(first)}
        offers = {name: web.offer() for name, web in webs.items()}
        sizes = {name: _size(self._text, name, offer) for name, offer in offers.items()}
        kept = sum(it.num_bytes for it in _kept(partial, offers))
        total_bytes = sum(sizes.values())
        partial.check_room(total_bytes, total_bytes - kept + max(sizes.values()))
        done_bytes = 0
        for name, web in webs.items():
            report = _report_of(partial, done_bytes, total_bytes)
            self._fetch_part(partial.part(name, report), web, offers[name], scratch)
            done_bytes += sizes[name]
        self._join(partial, [partial.parts / name for name in webs])
        return None

    def _web(self, path: str, name: str) -> WebSource:
        url = urlunsplit(self._url._replace(path=path))
        text = f"{self._text}: {name}"
        return WebSource(text, url, token=self._token, backoff_s=self._backoff_s)

    def _fetch_part(self, part: PartialFetch, web: WebSource, offer: Offer, scratch: Path) -> None:
        wanted = _position(offer)
        with part:
            if not offer.validator or part.position != wanted:
                web.fetch(part, scratch)
                part.finish()
                part.keep()
            if part.position != wanted:
                part.discard()
                raise SourceError(f"{web.text} changed while it was fetched; pull again")
        if offer.sha256 and (found := file_sha256(part.path)) != offer.sha256:
            part.discard()
            raise ArtifactCorruptError(
                f"{web.text}: the fetched bytes hash to {found}, its origin says {offer.sha256}; "
                "they were thrown away"
            )

    def _join(self, partial: PartialFetch, parts: Sequence[Path]) -> None:
        try:
            whole: JoinedGguf = joined(tuple(parts))
        except ArtifactCorruptError as error:
            shutil.rmtree(partial.parts)
            raise ArtifactCorruptError(f"{self._text}: {error.message}") from error
        # Without a total: it has room as parts are deleted, not before.
        partial.begin("", offset=0, total_bytes=None, stage="unpacking")
        for piece in read_in_pieces(whole, COPY_BYTES, Path.unlink):
            partial.write(piece)


def _size(text: str, name: str, offer: Offer) -> int:
    if offer.num_bytes is None:
        raise SourceError(f"{text}: the server does not say how long {name} is")
    return offer.num_bytes


def _position(offer: Offer) -> FetchPosition:
    return FetchPosition(offer.validator, offer.num_bytes or 0)


def _kept(partial: PartialFetch, offers: dict[str, Offer]) -> list[FetchPosition]:
    """Where earlier fetches of these parts stopped, as far as they can be resumed."""
    found = {name: partial.part(name, lambda _: None).position for name in offers}
    return [it for name, it in found.items() if it.validator == offers[name].validator]


def _report_of(partial: PartialFetch, done_bytes: int, total_bytes: int) -> ReportProgress:
    """Progress of one part as that of all, `done_bytes` of them before it."""

    def report(progress: PullProgress) -> None:
        partial.report(progress.stage, done_bytes + progress.done_bytes, total_bytes)

    return report
