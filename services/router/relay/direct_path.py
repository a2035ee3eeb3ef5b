"""Sessions whose commits go straight from replica to edge: what the relay does about it.
No I/O, no clock.

The router lets them in, places them, and ends them as all others. Its replica says from which token
on it does not see their commits any more; from there on it keeps nothing to move them with, and
their edge, which alone has all tokens, opens them again if they are lost.
"""

from __future__ import annotations

from outrider.v1 import inference_pb2


def pass_wish(opening: inference_pb2.OpenSession, edge: str | None) -> None:
    """Name the edge in an open that asks for its commits, or take the wish out."""
    if not opening.HasField("direct"):
        return
    if edge is None:
        opening.ClearField("direct")
    else:
        opening.direct.edge = edge


def pass_grant(opened: inference_pb2.SessionOpened, address: str, edge: str | None) -> None:
    """Say where the ticket is good, or take out one that nobody asked for."""
    if not opened.HasField("direct"):
        return
    if edge is None:
        opened.ClearField("direct")
    else:
        opened.direct.address = address
