"""`python -m services.edge.drafter SETTINGS DESCRIPTOR`: what an edge starts beside itself."""

from __future__ import annotations

import socket
import sys

from services.edge.drafter.settings import DrafterSettings
from services.edge.drafter.worker import main

if __name__ == "__main__":
    text, descriptor = sys.argv[1:]
    sys.exit(main(DrafterSettings.from_json(text), socket.socket(fileno=int(descriptor))))
