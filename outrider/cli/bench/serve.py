"""`outrider bench serve`: open-loop load, and what came of it."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Annotated, Final

import typer

from outrider.cli import edge_choice
from outrider.cli.bench import plot as plotting
from outrider.cli.bench.arrivals import arrival_times, made_prompts
from outrider.cli.bench.report import GOALS, Measured, Reply, as_dict, lines
from outrider.cli.bench.targets import (
    Endpoint,
    RequestFailedError,
    RequestSettings,
    Target,
    edge_target,
    endpoint_target,
)
from outrider.cli.local import development_key
from outrider.cli.local.state import StateDir, default_state_dir, running_mesh
from outrider.cli.prompting import options
from outrider.errors import InvalidRequestError, OutriderError, UnavailableError

app = typer.Typer(
    no_args_is_help=True,
    help="Send load to a mesh, or to any endpoint of the OpenAI API, and measure it.",
)
_MAX_REQUESTS: Final = 100_000
_PROGRESS_S: Final = 0.5

_Url = Annotated[
    str, typer.Option(help="Send the load to this OpenAI endpoint: http://HOST:PORT/v1.")
]
_Rate = Annotated[
    str, typer.Option(help="Requests per second; `inf`: all at once.", metavar="NUMBER|inf")
]
_Requests = Annotated[
    int, typer.Option(min=1, max=_MAX_REQUESTS, help="Number of requests to send.")
]
_Burstiness = Annotated[
    float,
    typer.Option(
        min=0.01, max=1000, help="Shape of the arrivals: 1: Poisson; less: bursts; more: evener."
    ),
]
_Concurrency = Annotated[
    int,
    typer.Option(
        min=0,
        max=10_000,
        help="Most requests at once; the others wait, and their wait counts. 0: no limit.",
    ),
]
_Words = Annotated[
    int, typer.Option(min=4, max=100_000, help="Length of generated prompts, in words.")
]
_Warmup = Annotated[
    int,
    typer.Option(min=0, max=1000, help="Number of requests to send first, without counting them."),
]
_Timeout = Annotated[
    float, typer.Option(min=0.1, max=86_400, help="Longest time for a request, in seconds.")
]
_Goodput = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:MS",
        help="Count the requests with `ttft`, `tpot` or `e2e` within MS milliseconds. Repeatable.",
    ),
]


@app.command()
def serve(
    url: _Url = "",
    model: Annotated[
        str,
        typer.Option(help="Name of the model at the endpoint; default: the endpoint's own choice."),
    ] = "",
    rate: _Rate = "1",
    requests: _Requests = 50,
    burstiness: _Burstiness = 1.0,
    max_concurrency: _Concurrency = 0,
    prompt_file: options.PromptFile = None,
    prompt_words: _Words = 50,
    max_tokens: Annotated[
        int, typer.Option(min=1, max=100_000, help="Longest reply, in tokens.")
    ] = 64,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="Sampling temperature; 0 is greedy.")
    ] = 0.0,
    seed: options.Seed = 0,
    warmup: _Warmup = 1,
    timeout: _Timeout = 300.0,
    goodput: _Goodput = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the distributions to this .png file.")
    ] = None,
    edge: edge_choice.Edge = None,
    ca: edge_choice.Ca = None,
    insecure: edge_choice.Insecure = False,
    key_file: edge_choice.KeyFile = None,
    api_key: edge_choice.ApiKey = None,
    user: edge_choice.User = "",
    state_dir: StateDir = None,
) -> None:
    """Send chat requests at a fixed rate (open loop) and measure the replies.

    The requests go over QUIC to an edge, by default the edge of the mesh here, or with --url to any
    OpenAI chat endpoint. Times count from each request's planned arrival. Ctrl-C stops early and
    prints the results so far. Exit status 1 if no request succeeded.
    """
    goals_ms = read_goals(goodput or [])
    if plot is not None:
        plotting.check(plot)
    times = arrival_times(requests, read_rate(rate), burstiness, seed)
    prompts = _prompts(prompt_file, prompt_words, seed)
    asked = RequestSettings(model, max_tokens, temperature, seed)
    load = LoadTest(times, prompts, max_concurrency, warmup, timeout, goals_ms)
    target: AbstractAsyncContextManager[Target]
    if url:
        if edge is not None:
            raise InvalidRequestError("give either --url or --edge")
        endpoint = Endpoint.parse(url)
        key = _key_of(endpoint, key_file, api_key, state_dir)
        where, target = url, endpoint_target(replace(endpoint, key=key), asked)
    else:
        chosen = edge_choice.choose(edge, ca, key_file, api_key, user, state_dir, insecure=insecure)
        where = f"{chosen.address.host}:{chosen.address.port}"
        target = edge_target(chosen, asked)
    is_whole = asyncio.run(load.run(target))
    told = {"target": where, "rate": rate, "seed": seed, **as_dict(load.measured, goals_ms)}
    print(json.dumps(told) if as_json else "\n".join(lines(told)))
    if plot is not None:
        plotting.draw(load.measured, f"{where}, {rate} requests/s", plot)
    if not is_whole:
        raise typer.Exit(130)
    raise typer.Exit(int(load.measured.num_well == 0))


def read_rate(text: str) -> float:
    """Raises InvalidRequestError."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise InvalidRequestError(f"--rate takes requests per second, or inf, not {text!r}")
    return rate


def read_goals(texts: Sequence[str]) -> dict[str, float]:
    """Milliseconds by name. Raises InvalidRequestError."""
    goals: dict[str, float] = {}
    for text in texts:
        name, _, limit = text.partition(":")
        try:
            goals[name] = float(limit)
        except ValueError:
            goals[name] = 0.0
        if name not in GOALS or not 0 < goals[name] < math.inf:
            raise InvalidRequestError(
                f"--goodput takes NAME:MS with a name of {', '.join(GOALS)}, not {text!r}"
            )
    return goals


def _prompts(file: Path | None, num_words: int, seed: int) -> Iterator[str]:
    """An endless iterator of prompts; those of a file repeat. Raises InvalidRequestError."""
    if file is None:
        return made_prompts(num_words, seed)
    found = options.read_prompts(None, None, file)
    for prompt in found:
        if isinstance(prompt, options.NoPrompt):
            raise prompt
    return cycle(str(prompt) for prompt in found)


def _key_of(
    endpoint: Endpoint, key_file: Path | None, api_key: str | None, state_dir: Path | None
) -> str:
    """Key for an endpoint: the flags', else the development key if the endpoint is the local mesh.
    The key of the environment is never sent to an endpoint. Raises InvalidRequestError."""
    if key_file is not None or api_key is not None:
        return edge_choice.given_key(key_file, api_key)
    folder = (state_dir or default_state_dir()).resolve()
    mesh = running_mesh(folder)
    ports = [row.get("http_port") for row in mesh.services] if mesh else []
    is_here = endpoint.host in ("127.0.0.1", "localhost") and endpoint.port in ports
    return development_key.read(folder) if is_here else ""


class LoadTest:
    """One load test: requests at planned times, however the replies turn out."""

    def __init__(
        self,
        times: Sequence[float],
        prompts: Iterator[str],
        max_concurrency: int,
        num_warmup: int,
        timeout_s: float,
        goals_ms: Mapping[str, float],
    ) -> None:
        """`times` in seconds from the start."""
        self.measured = Measured()
        self._times = times
        self._prompts = prompts
        self._gate = asyncio.Semaphore(max_concurrency or len(times))
        self._num_warmup = num_warmup
        self._timeout_s = timeout_s
        self._goals_ms = goals_ms
        self._began_s = 0.0
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, target: AbstractAsyncContextManager[Target]) -> bool:
        """Whether it was not interrupted. Raises OutriderError if the target cannot be reached, or
        refuses the warm-up."""
        async with target as opened:
            await self._warm_up(opened)
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
            self._began_s = time.monotonic()
            sending = asyncio.create_task(self._send(opened))
            stopped = asyncio.create_task(stop.wait())
            with self._progress():
                await asyncio.wait({sending, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in (sending, stopped, *self._running):
                task.cancel()
            await asyncio.gather(sending, stopped, *self._running, return_exceptions=True)
            return not stop.is_set()

    async def _warm_up(self, target: Target) -> None:
        for _ in range(self._num_warmup):
            try:
                await self._once(target, Reply(0.0), next(self._prompts))
            except RequestFailedError as error:
                why = f"the request before the test failed: {error.reason}"
                if error.reason in ("HTTP_401", "HTTP_403"):
                    why += "; give a key with --key-file"
                raise UnavailableError(why) from error
            except TimeoutError as error:
                raise UnavailableError(
                    f"the request before the test took over {self._timeout_s:g} s; raise --timeout"
                ) from error

    def _clock(self) -> float:
        return time.monotonic() - self._began_s

    async def _send(self, target: Target) -> None:
        for planned_s in self._times:
            await asyncio.sleep(max(0.0, planned_s - self._clock()))
            reply = Reply(planned_s, started_s=self._clock())
            task = asyncio.create_task(self._one(target, reply, next(self._prompts)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        while self._running:
            await asyncio.wait(self._running)

    async def _one(self, target: Target, reply: Reply, prompt: str) -> None:
        async with self._gate:
            reply.sent_s = self._clock()
            try:
                await self._once(target, reply, prompt)
            except OutriderError as error:
                reply.error = error.reason
            except RequestFailedError as error:
                reply.error = error.reason
            except TimeoutError:
                reply.error = "TIMEOUT"
        reply.ended_s = self._clock()
        self.measured.add(reply, self._goals_ms)

    async def _once(self, target: Target, reply: Reply, prompt: str) -> None:
        async with asyncio.timeout(self._timeout_s):
            await target.ask(prompt, reply, self._clock)

    @contextmanager
    def _progress(self) -> Iterator[None]:
        """A bar on standard error, where that is a terminal."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            number = bar.add_task("requests", total=len(self._times))

            async def follow() -> None:
                while True:
                    bar.update(number, completed=self.measured.num_sent)
                    await asyncio.sleep(_PROGRESS_S)

            task = asyncio.create_task(follow())
            try:
                yield
            finally:
                task.cancel()
