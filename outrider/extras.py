"""Optional packages: the extra that brings each, and the command that installs it where this runs.

`pip` alone may belong to another environment than the one that Outrider was installed into by pipx
or `uv tool`. So the command names this Python, whose pip Outrider depends on. It asks no package
index for Outrider: that is installed already, and pip reads the extra from it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Final

EXTRA_OF: Final[Mapping[str, str]] = {
    "aioquic": "client",
    "prompt_toolkit": "client",
    "jwt": "edge",
    "anycorn": "edge",
    "anyio": "edge",
    "msgspec": "edge",
    "starlette": "edge",
    "openvino": "inference",
    "openvino_genai": "inference",
    "openvino_tokenizers": "inference",
    "llguidance": "inference",
    "torch": "torch",
    "pyarrow": "bulk",
    "matplotlib": "bench",
    "redis": "redis",
    "obstore": "s3",
}
"""By the name to import, the extra with all that its users need."""


def install_command(*extras: str) -> str:
    """A command line that adds these extras to this environment."""
    return f"{shlex.quote(sys.executable)} -m pip install 'outrider[{','.join(extras)}]'"


def advice_for(module: str | None) -> str:
    """What to do about a module that cannot be imported; empty if no extra has it."""
    package = (module or "").partition(".")[0]
    extra = EXTRA_OF.get(package)
    return f"{package} is not installed; run: {install_command(extra)}" if extra else ""
