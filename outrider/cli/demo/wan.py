"""`outrider demo wan`: plain streaming and Outrider side by side, far from the region."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from outrider.cli.demo.mesh import own_mesh
from outrider.cli.local import development_key
from outrider.cli.local.mesh import MAX_RTT_MS
from outrider.cli.local.state import running_mesh
from outrider.cli.prompting import options
from outrider.errors import OutriderError, UnavailableError
from outrider.models.chat import Message

if TYPE_CHECKING:
    from rich.table import Table

    from outrider.client import ChatResult, Client, Transcript
    from outrider.sampling.params import SamplingParams

PROMPT: Final = "What is the water cycle?"
"""Its answer by the default model is right, and text of it is shown early."""
_FRAMES_PER_S: Final = 20


def wan(
    rtt: Annotated[
        float,
        typer.Option(
            min=0, max=MAX_RTT_MS, help="Round trip from edge to region, in milliseconds."
        ),
    ] = 150.0,
    prompt: Annotated[str, typer.Option(help="The prompt.")] = PROMPT,
    model: options.Model = "",
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    max_tokens: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="Longest reply, in tokens.")
    ] = 120,
) -> None:
    """Stream one prompt twice, side by side: by plain streaming (left) and by Outrider (right).

    The demo starts a mesh with this round trip between edge and router, and stops it afterwards.
    Both replies share this machine's cores. Text that is not final is dimmed. Exit status 1 if the
    texts differ.
    """
    params = options.sampling(temperature, 1.0, 0, seed, max_tokens)
    print(
        f"outrider: starting a mesh, with {rtt:g} ms from edge to region",
        file=sys.stderr,
        flush=True,
    )
    with own_mesh(model, ("--regions", "us-east", "--rtt", str(rtt))) as folder:
        plain, ours = asyncio.run(_both(folder, prompt, params))
    for side in (plain, ours):
        print(f"outrider: {side.title}: {_times(side.whole)}", file=sys.stderr)
    if plain.whole.text != ours.whole.text:
        raise OutriderError("the two texts differ")
    print(
        f"outrider: the texts are identical: {len(ours.whole.text.encode())} bytes",
        file=sys.stderr,
    )


def _times(result: ChatResult) -> str:
    """When text came, in words."""
    times = result.timings
    firsts = [it for it in (times.provisional_ttft_ms, times.committed_ttft_ms) if it is not None]
    speed = f", {times.tokens_per_s:.0f} tokens/s" if times.tokens_per_s else ""
    early = result.speculation_stats.shown_tokens
    shown = f", {early} tokens shown early" if early else ""
    return f"first text after {min(firsts, default=0.0):.0f} ms{speed}{shown}"


@dataclass(slots=True)
class _Side:
    """One half of the screen."""

    title: str
    transcript: Transcript
    began_s: float = 0.0
    took_s: float | None = None
    """None while it streams."""
    result: ChatResult | None = None

    @property
    def whole(self) -> ChatResult:
        """The reply, which has ended."""
        assert self.result is not None, "asked before its end"
        return self.result


async def _both(folder: Path, prompt: str, params: SamplingParams) -> tuple[_Side, _Side]:
    from rich.console import Console
    from rich.live import Live

    from outrider.client import Transcript, connect

    mesh = running_mesh(folder)
    if mesh is None:
        raise UnavailableError("the demo's mesh has ended")
    port, ca = mesh.service("edge")["port"], folder / "tls" / "cert.pem"
    plain = _Side("plain streaming", Transcript())
    ours = _Side("Outrider", Transcript())
    console = Console()
    async with connect(mesh.host, port, ca=ca, key=development_key.read(folder)) as client:

        async def stream(side: _Side, *, plainly: bool) -> None:
            side.began_s = time.monotonic()
            await _stream(client, side, prompt, params, plainly=plainly)
            side.took_s = time.monotonic() - side.began_s

        with Live(
            console=console,
            get_renderable=lambda: _screen(plain, ours),
            refresh_per_second=_FRAMES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            async with asyncio.TaskGroup() as sides:
                sides.create_task(stream(plain, plainly=True))
                sides.create_task(stream(ours, plainly=False))
    if not console.is_terminal:
        print(flush=True)  # Live ends the line on a terminal alone
    return plain, ours


async def _stream(
    client: Client, side: _Side, prompt: str, params: SamplingParams, *, plainly: bool
) -> None:
    async with client.chat(
        [Message("user", prompt)],
        sampling=params,
        provisional=not plainly,
        speculation="off" if plainly else "on",
    ) as chat:
        async for event in chat:
            side.transcript.apply(event)
        side.result = await chat.result()


def _screen(*sides: _Side) -> Table:
    """The halves as they are now."""
    from rich.table import Table
    from rich.text import Text

    screen = Table(expand=True, show_footer=True)
    texts = []
    for side in sides:
        now = time.monotonic() - side.began_s if side.took_s is None else side.took_s
        screen.add_column(side.title, ratio=1, footer=f"{now:.1f} s")
        seen = side.transcript
        texts.append(Text(_printable(seen.committed)).append(_printable(seen.provisional), "dim"))
    screen.add_row(*texts)
    return screen


def _printable(text: str) -> str:
    """Control characters are shown, not obeyed: a model must not drive the terminal."""
    return "".join(
        char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text
    )
