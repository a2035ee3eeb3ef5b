"""Two hosts with a network between them: network namespaces and a virtual cable (veth(4)). Where
this user may not make such, two addresses of the loopback stand for them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outrider.children import ChildProcess, start

_ADDRESSES: Final = ("10.213.0.1", "10.213.0.2")
_LOOPBACKS: Final = ("127.0.0.1", "127.0.0.2")


@dataclass(frozen=True, slots=True)
class Host:
    """One of them."""

    address: str
    is_apart: bool
    """Whether it has a network of its own."""
    enter: tuple[str, ...] = ()
    """What a command begins with that runs there."""

    def start(self, command: Sequence[str]) -> ChildProcess:
        """A process of this host; its id is that of the command itself."""
        return start((*self.enter, *command))


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """They end with the context, and whatever runs there has to have ended by then."""
    with ExitStack() as stack:
        try:
            found = _apart(stack)
        except (OSError, subprocess.CalledProcessError):
            found = None
        if found is None:
            yield Host(_LOOPBACKS[0], False), Host(_LOOPBACKS[1], False)
        else:
            yield found


def _apart(stack: ExitStack) -> tuple[Host, Host] | None:
    first = _namespace(stack, ("unshare", "--user", "--map-root-user", "--net"))
    if first is None:
        return None
    enter_first = _enter(first)
    second = _namespace(stack, (*enter_first, "unshare", "--net"))
    if second is None:
        return None
    cable = f"ip link add cable type veth peer name cable netns {second}"
    _run(*enter_first, *cable.split())
    hosts = []
    for enter, address in zip((enter_first, _enter(second)), _ADDRESSES, strict=True):
        for command in (
            f"ip address add {address}/24 dev cable",
            "ip link set cable up",
            "ip link set lo up",
        ):
            _run(*enter, *command.split())
        hosts.append(Host(address, True, enter))
    return hosts[0], hosts[1]


def _namespace(stack: ExitStack, command: Sequence[str]) -> int | None:
    """The id of a process that keeps a new one; None where it is not permitted."""
    holder = subprocess.Popen(
        [*command, "sh", "-c", "echo; exec sleep infinity"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(holder.wait)
    stack.callback(holder.kill)
    assert holder.stdout is not None
    stack.callback(holder.stdout.close)
    return holder.pid if holder.stdout.readline() else None


def _enter(pid: int) -> tuple[str, ...]:
    target = ("--target", str(pid), "--user", "--net", "--preserve-credentials")
    return ("nsenter", *target, f"--wd={Path.cwd()}", "--")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
