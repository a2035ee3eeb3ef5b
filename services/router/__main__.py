"""`python -m services.router [CONFIG.toml]`: a router in this process.

The file is read once; `outrider serve` follows it while it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from outrider import process
from outrider.config import load
from services.router.app import serve
from services.router.config import RouterConfig

if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    process.run(serve, load(RouterConfig, "router", file=file))
