"""Installs the named peers, anew if they are there; says which are installed."""

from __future__ import annotations

import argparse
import sys

import bench.peers
from bench.peers.lineup import PEERS


def main() -> int:
    flags = argparse.ArgumentParser(prog="python -m bench.peers", description=bench.peers.__doc__)
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument("names", nargs="*", choices=[*PEERS, []], metavar="NAME")
    for name in flags.parse_args().names:
        PEERS[name].install()
    for name, peer in PEERS.items():
        print(f"{name}: {'installed' if peer.is_installed() else peer.hint}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
