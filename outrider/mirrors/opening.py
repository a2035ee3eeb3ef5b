"""Builds mirrors from their texts, and the model store's mirrors from settings."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from outrider.errors import ConfigError
from outrider.mirrors.config import MirrorConfig
from outrider.mirrors.fetch import Mirrors
from outrider.mirrors.folder import FolderMirror
from outrider.mirrors.mirror import Mirror, WritableMirror
from outrider.mirrors.s3 import S3Mirror
from outrider.mirrors.web import PeerMirror, WebMirror, host_and_port
from outrider.models.sources.parse import check_url
from outrider.tls import PLAINTEXT, Tls

FORMS = "peer://HOST:PORT, https://HOST/PATH, s3://BUCKET/PREFIX, or file:PATH for a folder"


def open_mirrors(config: MirrorConfig, tls: Tls = PLAINTEXT) -> Mirrors | None:
    """Mirrors that a model store asks before models' own sources; None without any. Raises
    ConfigError."""
    if not config.sources:
        return None
    found = [open_mirror(text, tls) for text in config.sources]
    return Mirrors(found, connections=config.connections, max_bytes_s=config.max_mb_s * 1e6)


def open_mirror(text: str, tls: Tls = PLAINTEXT) -> Mirror:
    """A mirror, without connecting to it yet. `tls`: credentials for peers. Raises ConfigError,
    which lists the forms."""
    scheme, _, rest = text.partition(":")
    if scheme == "file" and rest and "\0" not in rest:
        return FolderMirror(Path(os.path.abspath(Path(rest).expanduser())))
    if scheme == "peer":
        if (place := host_and_port(text)) is None:
            raise ConfigError(f"{text!r} is no peer; write peer://HOST:PORT")
        return PeerMirror(*place, tls)
    if scheme == "s3":
        parts = urlsplit(text)
        if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
            raise ConfigError(
                f"{text!r} is no bucket; write s3://BUCKET/PREFIX, and the endpoint into "
                "AWS_ENDPOINT_URL"
            )
        return S3Mirror(text)
    if scheme in ("https", "http"):
        check_url(text, text)
        return WebMirror(text)
    raise ConfigError(f"{text!r} is no mirror of models; write {FORMS}")


def open_writable(text: str) -> WritableMirror:
    """One that models can be pushed to. Raises ConfigError."""
    mirror = open_mirror(text)
    if not isinstance(mirror, WritableMirror):
        raise ConfigError(
            f"nothing can be pushed to {text}; push to s3://BUCKET/PREFIX or file:PATH, or pull "
            "on the machine that runs `outrider models serve`"
        )
    return mirror
