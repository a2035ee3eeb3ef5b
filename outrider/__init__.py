"""Outrider: what several services share and what users import."""

import os

# Nobody uses gRPC in a forked process, and its fork handlers can crash one (outrider/children.py).
# gRPC reads this when it is first used.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = "0.1.0"
