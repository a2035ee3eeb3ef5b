"""Programs that draw pages, Chromium, Firefox and rsvg-convert: the machine's own, or those that
`tools/setup.sh dev` unpacked into .tools/renderers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

_UNPACKED: Final = Path(__file__).parents[1] / ".tools" / "renderers"
_BROWSERS: Final = ("chromium", "firefox-esr")
"""Their scripts in /usr/bin expect them to be installed."""


def renderer(name: str) -> Path | None:
    """The program of this name, None if the machine has none."""
    folder = f"usr/lib/{name}" if name in _BROWSERS else "usr/bin"
    unpacked = _UNPACKED / folder / name
    found = shutil.which(name) or (unpacked if unpacked.exists() else None)
    return None if found is None else Path(found)


def renderer_environment(folder: Path) -> dict[str, str]:
    """Where unpacked programs find their libraries and fonts; the fonts' list and cache are put
    into `folder`."""
    library = next((_UNPACKED / "usr/lib").glob("*-linux-gnu"), _UNPACKED)
    fonts = folder / "fonts.conf"
    fonts.write_text(
        f"<fontconfig><dir>/usr/share/fonts</dir><dir>{_UNPACKED}/usr/share/fonts</dir>"
        f"<cachedir>{folder}/fonts</cachedir></fontconfig>",
        encoding="utf-8",
    )
    libraries = f"{library}:{library}/pulseaudio"
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "FONTCONFIG_FILE": str(fonts)}
