"""`python -m services.edge [CONFIG.toml]`: an edge in this process.

The file is read once, without its [models.NAME] tables. `outrider serve` reads
these too, and follows the file while it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from outrider import process
from outrider.config import load
from services.edge.app import serve
from services.edge.config import EdgeConfig

if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    process.run(serve, load(EdgeConfig, "edge", file=file))
