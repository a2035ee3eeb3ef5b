"""The content-addressed model store: artifacts by sha256, shared by the processes of a machine.

    blobs/sha256/<hex>      artifacts, read-only, never rewritten in place
    index/<key>.json        which source gave which artifact
    derived/<hex>/<name>/   what was built from an artifact, with its own manifest
    derived/<hex>/*.json    what engines found out about it on this machine
    partial/  tmp/  locks/  work in progress

Bytes are hashed on every load and no "verified" stamp is kept: a stamp could only show that size
and times did not change, and neither a bad disk sector nor a torn write after power loss changes
those. Hashing costs about as much as reading the file once, which the loader does anyway.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outrider.durable_files import sync_directory
from outrider.errors import (
    ArtifactCorruptError,
    ArtifactMissingError,
    ConfigError,
    ModelStoreError,
    SourceError,
)
from outrider.models.definitions import ModelSpec
from outrider.models.disk.derived import build_once, check_name, is_intact
from outrider.models.disk.fetch import PartialFetch, PullProgress, ReportProgress, ignore_progress
from outrider.models.disk.files import empty_directory, exclusive, file_sha256
from outrider.models.disk.index import IndexEntry, SourceIndex, source_key
from outrider.models.sources import ArtifactSource, parse_source
from outrider.models.sources.by_digest import DigestSource

MAX_ARTIFACT_BYTES = 256 << 30
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of the store."""

    source: str
    """Canonical text of its source."""
    sha256: str
    """SHA-256 of its bytes, hexadecimal."""
    path: Path
    """Its file: for reading only."""
    num_bytes: int
    """Its size in bytes."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of verifying one artifact."""

    artifact: Artifact
    """The artifact."""
    problem: str
    """Description of the fault; "" if the artifact is intact."""


class ByDigest(Protocol):
    """Places that have artifacts by their sha256 (outrider.mirrors)."""

    def fetch(self, sha256: str, path: Path, *, max_bytes: int, report: ReportProgress) -> int:
        """Put the artifact at `path`, verified; returns its size in bytes. Raises SourceError if no
        mirror has it, ModelStoreError if the disk has no room for it."""
        ...


def default_root(environ: Mapping[str, str] = os.environ) -> Path:
    """$OUTRIDER_MODEL_STORE, or ~/.cache/outrider/models."""
    chosen = environ.get("OUTRIDER_MODEL_STORE", "")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache/outrider/models"


class ModelStore:
    """The store in one directory. Safe for any number of threads and processes at once.

    Loading (`path`, and `ensure` and `derived` of what is in the store) writes nothing and takes no
    lock, so a filled store may be mounted read-only.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_bytes: int = MAX_ARTIFACT_BYTES,
        mirrors: ByDigest | None = None,
    ) -> None:
        """`mirrors` are asked before an artifact's own source where its sha256 is known."""
        self._root = root.absolute()
        self._max_bytes = max_bytes
        self._mirrors = mirrors
        self._index = SourceIndex(self._root / "index")

    @property
    def root(self) -> Path:
        """The store's directory."""
        return self._root

    def path(self, source: str, *, sha256: str | None = None) -> Path:
        """The verified file of a source; nothing is fetched.

        ArtifactMissingError if it was never pulled, ArtifactCorruptError if its bytes do not hash
        to its name or the name is not the pinned `sha256`. Without a pin, None or "", it is the
        digest of the first pull that holds.
        """
        return self.load(source, sha256=sha256).path

    def load(self, source: str, *, sha256: str | None = None) -> Artifact:
        """Like `path`, with the artifact's digest and size."""
        with self._disk():
            parsed = parse_source(source)
            return self._load(parsed.text, _checked_pin(parsed, sha256))

    def ensure(
        self, source: str, *, progress: ReportProgress | None = None, sha256: str | None = None
    ) -> Artifact:
        """The verified artifact of a source, pulled if it is missing or corrupt.

        What replaces a corrupt artifact must hash to the same sha256, so that a source that
        changed meanwhile is noticed. Errors as of `pull`.
        """
        try:
            return self.load(source, sha256=sha256)
        except (ArtifactMissingError, ArtifactCorruptError):
            return self.pull(source, progress=progress, sha256=sha256 or self.recorded(source))

    def pull(
        self, source: str, *, progress: ReportProgress | None = None, sha256: str | None = None
    ) -> Artifact:
        """Fetch a source now, whether or not it is there; blocking.

        A pull that waited for another process's pull of the same source returns that one's
        artifact. With `sha256`, an intact artifact of that digest is used without fetching, and
        other bytes are refused: ArtifactCorruptError. SourceError if the source cannot be read,
        ModelStoreError if the disk is full.
        """
        parsed, report = parse_source(source), progress or ignore_progress
        pin = _checked_pin(parsed, sha256)
        key = source_key(parsed.text)
        waiting = PullProgress("waiting", 0, None)
        with self._disk(), exclusive(self._lock(key), lambda: report(waiting)) as waited:
            present = self._present(parsed.text, pin, waited)
            artifact = present or self._fetch_anywhere(parsed, key, pin, report)
            # What the other way of having it left half done.
            self._drop_part(key)
            self._drop_shards(artifact.sha256)
            return artifact

    def derived(self, artifact: Artifact, name: str, build: Callable[[Path], None]) -> Path:
        """The verified directory `name` built from an artifact; `build(empty directory)` fills it.

        Built once, under a lock between processes; published whole; rebuilt if its manifest does
        not match. The name must differ whenever anything else that `build` depends on does.
        """
        return self.derived_of(artifact.sha256, name, build)

    def derived_of(self, sha256: str, name: str, build: Callable[[Path], None]) -> Path:
        """Like `derived`, for anything that has a digest, such as a vocabulary. It stays when
        models are removed."""
        key = f"{sha256}-{check_name(name)}"
        with self._disk():
            return build_once(
                self._root / "derived" / sha256 / name,
                self._root / "tmp" / key,
                self._lock(key),
                build,
            )

    def intact(self, source: str, name: str, *, sha256: str | None = None) -> Path | None:
        """The verified directory `name` that was built from a source's artifact. The artifact
        itself is not read: hashing a large model takes seconds. None if it was not built, or if the
        artifact was not the pinned `sha256`."""
        recorded = self.recorded(source)
        if not recorded or (sha256 or recorded) != recorded:
            return None
        with self._disk():
            folder = self._root / "derived" / recorded / check_name(name)
            return folder if is_intact(folder) else None

    def recorded(self, source: str) -> str:
        """The sha256 that a source's first pull gave, without a look at the file; "" for one that
        was never pulled."""
        try:
            with self._disk():
                entry = self._index.read(parse_source(source).text)
        except ArtifactCorruptError:
            return ""  # a damaged entry pins nothing; the pull replaces it
        return entry.sha256 if entry is not None else ""

    def weights_of(self, spec: ModelSpec) -> str:
        """A name for a model's weights that needs no look at the file: their sha256, or the model's
        name if they were never pulled."""
        return spec.sha256 or self.recorded(spec.source) or spec.name

    def blob(self, sha256: str) -> Path | None:
        """The file of an artifact by its digest, whichever source gave it; not verified. None
        without one."""
        with self._disk():
            path = self._blob(sha256)
            return path if path.is_file() else None

    def built(self, artifact: Artifact, prefix: str) -> tuple[Path, ...]:
        """Directories built from an artifact whose names begin with `prefix`, the newest last; not
        verified."""
        with self._disk():
            found = (self._root / "derived" / artifact.sha256).glob(f"{prefix}*")
            return tuple(sorted(found, key=lambda path: path.stat().st_mtime_ns))

    def list(self) -> tuple[Artifact, ...]:
        """Every artifact, by source; not verified."""
        with self._disk():
            entries = sorted(self._index.entries(), key=lambda entry: entry.source)
        return tuple(self._artifact(entry) for entry in entries)

    def verify(self) -> tuple[Verification, ...]:
        """Hash every artifact."""
        return tuple(Verification(artifact, self._problem(artifact)) for artifact in self.list())

    def remove(self, source: str) -> None:
        """Forget a source; free its artifact if no other source has the same, and its unfinished
        fetches.

        Raises ArtifactMissingError for an unknown source. A process that has the file open keeps it
        (POSIX); one that loads it afterwards gets ArtifactMissingError.
        """
        text = parse_source(source).text
        with self._disk(), self._publishing():
            entry = self._index.read(text)
            if entry is None:
                raise _missing(text)
            self._index.delete(text)
            if all(other.sha256 != entry.sha256 for other in self._index.entries()):
                self._blob(entry.sha256).unlink(missing_ok=True)
                shutil.rmtree(self._root / "derived" / entry.sha256, ignore_errors=True)
            key = source_key(text)
            with suppress(_HeldError), exclusive(self._lock(key), _raise_held):
                self._drop_part(key)
            self._drop_shards(entry.sha256)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ModelStoreError(
                f"the model store {self._root} failed: {error}; check that the folder is one that "
                "may be written, and room on its disk, or set OUTRIDER_MODEL_STORE to another"
            ) from error

    def _load(self, text: str, pin: str | None) -> Artifact:
        entry = self._index.read(text)
        if entry is None:
            raise _missing(text)
        if pin is not None and entry.sha256 != pin:
            raise ArtifactCorruptError(
                f"{text} was pulled as sha256 {entry.sha256}, and {pin} is wanted; pull it again"
            )
        artifact = self._artifact(entry)
        problem = self._problem(artifact)
        if problem:
            raise ArtifactCorruptError(f"{text}: {problem}; pull it again")
        return artifact

    def _problem(self, artifact: Artifact) -> str:
        try:
            num_bytes = artifact.path.stat().st_size
            if num_bytes != artifact.num_bytes:
                return f"{artifact.path} has {num_bytes} of {artifact.num_bytes} bytes"
            actual = file_sha256(artifact.path)
        except FileNotFoundError:
            return f"{artifact.path} is gone"
        except OSError as error:
            return f"{artifact.path} cannot be read ({error.strerror})"
        if actual != artifact.sha256:
            return f"{artifact.path} is corrupt: its bytes hash to {actual}"
        return ""

    def _present(self, text: str, pin: str | None, waited: bool) -> Artifact | None:
        """The artifact, if it need not be fetched: another process just pulled it, or the pinned
        bytes exist."""
        if waited:
            try:
                return self._load(text, pin)
            except (ArtifactMissingError, ArtifactCorruptError):
                return None  # the other pull failed: fetch it ourselves
        if pin is not None and self._blob(pin).is_file():
            artifact = Artifact(text, pin, self._blob(pin), self._blob(pin).stat().st_size)
            if not self._problem(artifact):
                return self._register(artifact)
        return None

    def _fetch_anywhere(
        self, source: ArtifactSource, key: str, pin: str | None, report: ReportProgress
    ) -> Artifact:
        """From the mirrors; where none has it, from the source itself."""
        if pin is None or self._mirrors is None:
            return self._fetch(source, key, pin, report)
        try:
            return self._fetch_by_digest(source.text, pin, self._mirrors, report)
        except ModelStoreError as error:  # one without room for it, too: they may have lied
            if isinstance(source, DigestSource):
                raise
            missing = error
        try:
            return self._fetch(source, key, pin, report)
        except SourceError as error:
            raise SourceError(f"{error.message}; before that: {missing.message}") from error

    def _fetch_by_digest(
        self, text: str, sha256: str, mirrors: ByDigest, report: ReportProgress
    ) -> Artifact:
        partial = self._shards(sha256)
        # Two sources may have one digest, and their pulls then write one file.
        with exclusive(self._lock(sha256)):
            if present := self._present(text, sha256, waited=False):
                return present
            num_bytes = mirrors.fetch(sha256, partial, max_bytes=self._max_bytes, report=report)
            return self._put(partial, IndexEntry(text, sha256, num_bytes))

    def _fetch(
        self, source: ArtifactSource, key: str, pin: str | None, report: ReportProgress
    ) -> Artifact:
        scratch = empty_directory(self._root / "tmp" / key)
        partial = PartialFetch(
            self._part(key),
            max_bytes=self._max_bytes,
            report=report,
            revision=self._revision_of(source.text, pin),
        )
        try:
            with partial:
                claimed = source.fetch(partial, scratch)
                sha256, num_bytes = partial.finish()
            _check_digest(partial, source.text, sha256, origin=claimed, pin=pin)
            return self._publish(source.text, partial, sha256, num_bytes)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _revision_of(self, text: str, pin: str | None) -> str:
        """The commit that gave these very bytes before; "" if none is known."""
        try:
            entry = self._index.read(text)
        except ArtifactCorruptError:
            return ""
        return entry.revision if entry is not None and entry.sha256 == pin else ""

    def _publish(self, text: str, partial: PartialFetch, sha256: str, num_bytes: int) -> Artifact:
        artifact = self._put(partial.path, IndexEntry(text, sha256, num_bytes, partial.revision))
        partial.discard()
        return artifact

    def _put(self, path: Path, entry: IndexEntry) -> Artifact:
        """Publish a file of the store's own, whose digest is already checked."""
        blob = self._blob(entry.sha256)
        with self._publishing():
            blob.parent.mkdir(parents=True, exist_ok=True)
            path.replace(blob)
            blob.chmod(0o444)  # after it has its name: a partial file has to stay writable
            sync_directory(blob.parent)
            self._index.write(entry)
        return self._artifact(entry)

    def _register(self, artifact: Artifact) -> Artifact | None:
        """Under another source, a file that is there; None if it was removed meanwhile."""
        revision = self._revision_of(artifact.source, artifact.sha256)
        entry = IndexEntry(artifact.source, artifact.sha256, artifact.num_bytes, revision)
        with self._publishing():
            if not artifact.path.is_file():
                return None
            self._index.write(entry)
        return artifact

    def _publishing(self) -> AbstractContextManager[bool]:
        """The lock held while blobs and index change together, so that `remove` never frees an
        artifact that is being published."""
        return exclusive(self._lock("publish"))

    def _drop_part(self, key: str) -> None:
        """Delete an unfinished fetch from a source, under its lock."""
        part = self._part(key)
        part.unlink(missing_ok=True)
        part.with_suffix(".json").unlink(missing_ok=True)
        shutil.rmtree(part.with_suffix(".parts"), ignore_errors=True)

    def _drop_shards(self, sha256: str) -> None:
        """Delete an unfinished fetch from mirrors, unless it is still running in another
        process."""
        shards = self._shards(sha256)
        if shards.exists():
            with suppress(_HeldError), exclusive(self._lock(sha256), _raise_held):
                shards.unlink(missing_ok=True)

    def _lock(self, name: str) -> Path:
        return self._root / "locks" / f"{name}.lock"

    def _part(self, key: str) -> Path:
        return self._root / "partial" / f"{key}.part"

    def _shards(self, sha256: str) -> Path:
        return self._root / "partial" / f"{sha256}.shards"

    def _artifact(self, entry: IndexEntry) -> Artifact:
        return Artifact(entry.source, entry.sha256, self._blob(entry.sha256), entry.num_bytes)

    def _blob(self, sha256: str) -> Path:
        return self._root / "blobs" / "sha256" / sha256


class _HeldError(Exception):
    """A lock is held by somebody else."""


def _raise_held() -> None:
    raise _HeldError


def _missing(text: str) -> ArtifactMissingError:
    return ArtifactMissingError(f"{text} is not in the model store; run: outrider models pull")


def _check_digest(
    partial: PartialFetch, text: str, sha256: str, *, origin: str | None, pin: str | None
) -> None:
    for wanted, by in ((origin, "its origin"), (pin, "the pin")):
        if wanted is not None and wanted != sha256:
            partial.discard()
            raise ArtifactCorruptError(
                f"{text}: the fetched bytes hash to {sha256}, {by} says {wanted}; "
                "they were thrown away"
            )


def _checked_pin(source: ArtifactSource, sha256: str | None) -> str | None:
    """The digest required of the bytes: `sha256`, or the source's own."""
    own = source.sha256 if isinstance(source, DigestSource) else None
    if not sha256:
        return own
    if _SHA256.fullmatch(sha256) is None:
        raise ConfigError(f"{sha256!r} is no sha256; write 64 lower-case hexadecimal digits")
    if own not in (None, sha256):
        raise ConfigError(f"the source is {source.text}, and {sha256} is wanted; give one digest")
    return sha256
