"""A model's folder in a repository of a hub, as the archive that `dir:` makes of the same files.

One request names the commit that a revision is at now and the repository's files with sizes and
digests (as `huggingface_hub.HfApi.model_info(files_metadata=True)` asks); the files that make the
model are then fetched from that commit one after the other, each compared with its size and its
digest: SHA-256 of files in Git LFS, Git's own SHA-1 of the others. Nothing else of the repository
is fetched, and of its names only those that a model's folder can have are ever used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from outrider.errors import ArtifactCorruptError, SourceError
from outrider.models.disk.fetch import FetchPosition, PartialFetch
from outrider.models.safetensors_file import Extent, read_header
from outrider.models.sources.folder import (
    ARCHIVE_END,
    archive_bytes,
    member_header,
    member_padding,
)
from outrider.models.sources.members import (
    CHECKPOINT_INDEX,
    MAX_INDEX_BYTES,
    choose_members,
    is_member,
    is_weights_file,
)
from outrider.models.sources.web import WebSource
from outrider.models.strict_json import read_object

MAX_LISTING_BYTES: Final = 16 << 20
"""Longest listing of a repository; a file takes about 200 bytes."""
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SHA1: Final = re.compile(r"[0-9a-f]{40}")
_REHASHED_BYTES: Final = 1 << 20

_Url = Callable[[str], str]


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository."""

    name: str
    num_bytes: int
    digest: str
    """Hexadecimal: SHA-256 (64 digits), Git's SHA-1 of a blob (40), or "" if the hub gives none."""

    def new_hash(self) -> _Hash:
        """A hash to feed the file's bytes to and compare with `digest`."""
        if len(self.digest) != 40:
            return hashlib.sha256()
        header = b"blob %d\0" % self.num_bytes
        return hashlib.sha1(header, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """Contents of a repository at one commit."""

    commit: str
    files: Mapping[str, HubFile]
    """Files that can belong to a model's folder, by name."""
    names: frozenset[str]
    """Names of all files as the hub gives them; only for messages."""


def read_listing(data: bytes, where: str) -> Listing:
    """From the hub's answer. Raises SourceError for one of another form."""
    try:
        found = read_object(data)
        commit, listed = found["sha"], found["siblings"]
        if not isinstance(commit, str) or _COMMIT.fullmatch(commit) is None:
            raise ValueError("it names no commit")
        files, names = dict[str, HubFile](), set[str]()
        for entry in listed:
            file = _file(entry)
            names.add(entry["rfilename"])
            if file is not None and files.setdefault(file.name, file) is not file:
                raise ValueError(f"{file.name} is there twice")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise SourceError(
            f"{where}: the hub's listing cannot be read ({type(error).__name__}: {error}"[:300]
            + "); check HF_ENDPOINT"
        ) from error
    return Listing(commit, files, frozenset(names))


def _file(entry: Mapping[str, Any]) -> HubFile | None:
    """None for a file that belongs to no model's folder."""
    name = entry["rfilename"]
    if not isinstance(name, str):
        raise TypeError("a file has no name")
    if not is_member(name):
        return None
    lfs = entry.get("lfs") or {}
    size = lfs.get("size", entry.get("size"))
    if type(size) is not int or not 0 <= size < 1 << 50:
        raise ValueError(f"{name} has no size")
    sha256, sha1 = lfs.get("sha256", ""), entry.get("blobId", "")
    digest = sha256 if lfs else sha1
    form = _SHA256 if lfs else _SHA1
    if digest and (not isinstance(digest, str) or form.fullmatch(digest) is None):
        raise ValueError(f"{name} has a digest of another form")
    return HubFile(name, size, digest or "")


class HubFolderSource:
    """`hf:REPO` and `hf:REPO@REVISION`, whole folders.

    What was pulled once from a branch or tag is pulled again from the same commit, unless newer
    bytes are asked for.
    """

    def __init__(
        self, text: str, api_url: _Url, file_url: Callable[[str, str], str], revision: str,
        *, token: str = "", backoff_s: float = 0.5,
    ) -> None:  # fmt: skip
        """`api_url(revision)` is the address of the listing, `file_url(commit, name)` that of a
        file's bytes."""
        self._text = text
        self._api_url, self._file_url = api_url, file_url
        self._revision = revision
        self._token, self._backoff_s = token, backoff_s

    @property
    def text(self) -> str:
        """The canonical text; the token is no part of it."""
        return self._text

    def fetch(self, partial: PartialFetch, scratch: Path) -> str | None:
        """Write the archive, resuming an earlier attempt if the commit is the same. Raises
        SourceError if files are missing or cannot be fetched, UnsupportedModelError for a
        repository of another kind, ArtifactCorruptError for bytes with a wrong digest, none of
        which are kept."""
        revision = partial.revision or self._revision
        listing = read_listing(self._small(self._api_url(revision), MAX_LISTING_BYTES), self._text)
        if _COMMIT.fullmatch(revision) and listing.commit != revision:
            raise SourceError(f"{self._text}: the hub answers with the commit {listing.commit}")
        partial.revision = listing.commit

        def index() -> bytes:
            url = self._file_url(listing.commit, CHECKPOINT_INDEX)
            return self._small(url, MAX_INDEX_BYTES)

        names = choose_members(listing.names, self._text, index)
        self._write(partial, listing.commit, [listing.files[name] for name in names], scratch)
        return None

    def _write(
        self, partial: PartialFetch, commit: str, files: list[HubFile], scratch: Path
    ) -> None:
        total_bytes = archive_bytes(file.num_bytes for file in files)
        archive = _Archive(partial, _identity(commit, files), total_bytes)
        at = 0
        for file in files:
            at = archive.put(at, member_header(file.name, file.num_bytes))
            member = archive.member(file, at)
            if not member.is_compared:
                url = self._file_url(commit, file.name)
                web = self._web(url, file.name)
                claimed = None if member.is_whole else web.fetch(member, scratch)
                member.check(self._text, claimed)
            at = archive.put(at + file.num_bytes, member_padding(file.num_bytes))
        archive.put(at, ARCHIVE_END)

    def _small(self, url: str, max_bytes: int) -> bytes:
        """A short answer, in memory. Raises SourceError."""
        kept = _InMemory(max_bytes, self._text)
        self._web(url, "").fetch(kept, Path())
        return bytes(kept.data)

    def _web(self, url: str, name: str) -> WebSource:
        text = f"{self._text}: {name}" if name else self._text
        return WebSource(text, url, token=self._token, backoff_s=self._backoff_s)


def _identity(commit: str, files: list[HubFile]) -> str:
    """A digest of the files that an unfinished archive belongs to; it resumes only if this is
    equal."""
    listed = [(file.name, file.num_bytes, file.digest) for file in files]
    return hashlib.sha256(json.dumps([commit, listed]).encode()).hexdigest()


class _Archive:
    """An archive being written, member by member, behind the part that was kept."""

    def __init__(self, partial: PartialFetch, identity: str, total_bytes: int) -> None:
        self._partial = partial
        self._identity = identity
        self._total_bytes = total_bytes
        kept = partial.position
        known, _, self.member_validator = kept.validator.partition(" ")
        self._kept_bytes = kept.num_bytes if known == identity else 0
        self.go_on(self._kept_bytes, self.member_validator if self._kept_bytes else "")

    def go_on(self, offset: int, validator: str) -> None:
        """From a byte of the archive on; `validator` is the file's there."""
        self.member_validator = validator
        text = f"{self._identity} {validator}"
        self._partial.begin(text, offset=offset, total_bytes=self._total_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes written so far."""
        return self._partial.position.num_bytes

    def put(self, at: int, data: bytes) -> int:
        """Write what belongs to byte `at` and further, as far as it is not there; behind it."""
        self.write(data[max(0, self.num_bytes - at) :])
        return at + len(data)

    def write(self, data: bytes) -> None:
        if data:
            self._partial.write(data)

    def member(self, file: HubFile, begin: int) -> _Member:
        return _Member(self, file, begin)

    def check_header(self, file: HubFile, begin: int) -> None:
        """Raises ArtifactCorruptError for a checkpoint whose header contradicts itself."""
        read_header(Extent(file.name, self._partial.path, begin, file.num_bytes))

    def bytes_from(self, begin: int, add: Callable[[bytes], None]) -> None:
        """Pass what is written from offset `begin` on to `add`."""
        with self._partial.path.open("rb") as kept:
            kept.seek(begin)
            while chunk := kept.read(_REHASHED_BYTES):
                add(chunk)


class _Member:
    """One file's place in the archive: where its bytes are fetched to."""

    def __init__(self, archive: _Archive, file: HubFile, begin: int) -> None:
        self._archive, self._file, self._begin = archive, file, begin
        self.is_compared = archive.num_bytes > begin + file.num_bytes
        """Bytes behind it are there, which are written once it was compared."""
        self._hash = file.new_hash()
        if archive.num_bytes == begin + file.num_bytes and not file.digest:
            # The listing says no digest, the address of the bytes may: it is asked for again.
            self.discard()
        elif not self.is_compared:
            archive.bytes_from(begin, self._hash.update)
        self.is_whole = archive.num_bytes >= begin + file.num_bytes
        """All its bytes are there."""

    @property
    def position(self) -> FetchPosition:
        kept = self._archive.num_bytes - self._begin
        return FetchPosition(self._archive.member_validator if kept else "", kept)

    def begin(
        self, validator: str, *, offset: int, total_bytes: int | None, stage: str = "fetching"
    ) -> None:
        size = self._file.num_bytes
        if total_bytes is not None and total_bytes != size:
            raise SourceError(
                f"the server offers {total_bytes} bytes of {self._file.name}, the hub's listing "
                f"says {size}; pull again later"
            )
        if offset != self.position.num_bytes:
            self._hash = self._file.new_hash()  # the server begins anew
        self._archive.go_on(self._begin + offset, validator)

    def write(self, data: bytes) -> None:
        if self.position.num_bytes + len(data) > self._file.num_bytes:
            raise SourceError(
                f"the server sends more of {self._file.name} than the {self._file.num_bytes} bytes "
                "that the hub's listing says; pull again later"
            )
        self._hash.update(data)
        self._archive.write(data)

    def discard(self) -> None:
        """Drop what was written of this file; files before it stay."""
        self._hash = self._file.new_hash()
        self._archive.go_on(self._begin, "")

    def check(self, where: str, claimed: str | None) -> None:
        """Raises SourceError for a file that is too short; ArtifactCorruptError if its digest is
        not that of the listing or `claimed` by the server. Its bytes are dropped, so that the next
        attempt starts anew."""
        file, kept = self._file, self.position.num_bytes
        if kept != file.num_bytes:
            self.discard()
            raise SourceError(
                f"{where}: {file.name} ended after {kept} of {file.num_bytes} bytes; pull again"
            )
        found, wanted = self._hash.hexdigest(), file.digest or claimed or ""
        if wanted and found != wanted:
            self.discard()
            raise ArtifactCorruptError(
                f"{where}: {file.name} has the digest {found}, the hub says {wanted}; its bytes "
                "were thrown away: pull again"
            )
        if is_weights_file(file.name):
            self._check_header()

    def _check_header(self) -> None:
        try:
            self._archive.check_header(self._file, self._begin)
        except ArtifactCorruptError:
            self.discard()
            raise


class _InMemory:
    """A short answer."""

    def __init__(self, max_bytes: int, where: str) -> None:
        self.data = bytearray()
        self._max_bytes, self._where = max_bytes, where

    @property
    def position(self) -> FetchPosition:
        return FetchPosition("", len(self.data))

    def begin(
        self, validator: str, *, offset: int, total_bytes: int | None, stage: str = "fetching"
    ) -> None:
        self.data.clear()

    def write(self, data: bytes) -> None:
        if len(self.data) + len(data) > self._max_bytes:
            raise SourceError(
                f"{self._where}: the hub's answer has more than {self._max_bytes} bytes"
            )
        self.data += data

    def discard(self) -> None:
        self.data.clear()
