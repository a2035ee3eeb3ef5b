"""`python -m services.edge.drafter SETTINGS DESCRIPTOR PID`: what an edge starts beside itself."""

from __future__ import annotations

import socket
import sys

from services.edge.drafter.settings import DrafterSettings
from services.edge.drafter.worker import main

if __name__ == "__main__":
    text, descriptor, edge_pid = sys.argv[1:]
    sys.exit(
        main(DrafterSettings.from_json(text), socket.socket(fileno=int(descriptor)), int(edge_pid))
    )
