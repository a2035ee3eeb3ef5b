"""Documents in messages whose contents are text, such as a file of notes or of source code (pure).
The model is shown their titles and text; others are refused."""

from __future__ import annotations

import base64
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from services.edge.http.openai_errors import not_text, refused

_BASE64: Final = ";base64"
_TEXTS: Final = frozenset({"application/json", "application/xml", "application/yaml"})
_OTHER_TEXTS: Final = ("+json", "+xml", "+yaml")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f]")
"""A character that no text file has."""
_PDF: Final = "%PDF-"
"""The beginning of a PDF, which may be all ASCII."""


def shown(text: str, *titles: str | None) -> str:
    """A document as the model sees it: each title in a line of its own, then the text."""
    return "\n".join([*(it for it in titles if it), text])


def text_of_file(where: str, kind: str, data: str | None) -> str:
    """The text of an attached file. `data`: a data URL, or base64 of unknown contents; `kind`: the
    type of the part. Raises InvalidRequestError for a file that is not sent with the request, and
    for one that is no text."""
    head, comma, rest = (data or "").partition(",")
    if comma and head.startswith("data:"):
        is_base64 = head.endswith(_BASE64)
        return text_of_data(where, kind, head[len("data:") :], rest, is_base64=is_base64)
    try:
        text = base64.b64decode(data or "", validate=True).decode()
    except ValueError:
        raise not_text(where, kind) from None
    if data is None or text.startswith(_PDF) or _CONTROL.search(text):
        raise not_text(where, kind)
    return text


def text_of_data(
    where: str, kind: str, media_type: str | None, data: str | None, *, is_base64: bool = True
) -> str:
    """The text of data of this media type, in base64 or percent-encoded. Raises
    InvalidRequestError."""
    bare = (media_type or "").partition(";")[0].strip().lower()
    is_text = bare.startswith("text/") or bare in _TEXTS or bare.endswith(_OTHER_TEXTS)
    if data is None or not is_text:
        raise not_text(where, kind)
    try:
        content = base64.b64decode(data, validate=True) if is_base64 else unquote_to_bytes(data)
        return content.decode()
    except ValueError:
        raise refused(
            where, f"{where}: the file is no UTF-8 text in valid base64; send its text instead"
        ) from None
