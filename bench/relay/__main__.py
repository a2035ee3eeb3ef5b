"""The relay's process: commands as JSON lines on its input, an answer to each on its output.

    {"add": NAME, "kind": "udp" | "tcp", "target": [HOST, PORT]}  -> {"port": PORT}
    {"set": NAME, "up": {CONDITIONS}, "down": {CONDITIONS}}       -> {}
    {"traffic": null}  -> {"links": {NAME: [up, down]}, "cpu_s": CPU time of this process so far}

It ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import Any, TypeAlias

from bench.relay.lane import Conditions
from bench.relay.tcp import TcpLink
from bench.relay.udp import UdpLink

Link: TypeAlias = UdpLink | TcpLink
_KINDS: dict[str, type[UdpLink] | type[TcpLink]] = {"udp": UdpLink, "tcp": TcpLink}


class Relay:
    """All links of a run."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}

    async def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what a command says. Raises KeyError and ValueError for one that makes no sense."""
        if "add" in command:
            host, port = command["target"]
            link = _KINDS[command["kind"]]((host, port))
            self._links[command["add"]] = link
            return {"port": await link.start()}
        if "set" in command:
            up, down = (Conditions(**command[way]) for way in ("up", "down"))
            self._links[command["set"]].set(up, down)
            return {}
        links = {name: link.take_traffic() for name, link in self._links.items()}
        rows = {name: [way.to_json() for way in ways] for name, ways in links.items()}
        return {"links": rows, "cpu_s": time.process_time()}

    async def stop(self) -> None:
        """Close all links."""
        for link in self._links.values():
            await link.stop()


async def main() -> None:
    relay = Relay()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            print(json.dumps(await relay.answer(json.loads(line))), flush=True)
    finally:
        await relay.stop()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the bench too, which says so
        asyncio.run(main())
