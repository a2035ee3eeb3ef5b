"""`outrider explain`: why a router sent sessions where it did."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import operator, router_choice
from outrider.cli.columns import columns
from outrider.cli.local.state import StateDir, default_state_dir
from outrider.cli.model_choice import is_name, served_name
from outrider.cli.prompting import options
from outrider.errors import InvalidRequestError
from outrider.model_identity import short_form

if TYPE_CHECKING:
    from outrider.tls import Tls
    from outrider.v1 import router_pb2

_TIMEOUT_S = 10.0

_Text = Annotated[
    str | None,
    typer.Argument(help="A prompt: show what would be decided for it now, without running it."),
]
_Request = Annotated[str, typer.Option(help="Show only the session with this request id.")]
_Last = Annotated[
    int, typer.Option(min=1, max=10_000, help="Number of latest decisions to show, newest first.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print the router's answer as JSON.")]


def explain(
    text: _Text = None,
    request: _Request = "",
    last: _Last = 8,
    model: options.Model = "",
    router: router_choice.Router = "",
    as_json: _Json = False,
    state_dir: StateDir = None,
    certificate: operator.Certificate = None,
    private_key: operator.PrivateKey = None,
    ca: operator.Ca = None,
    trust_domain: operator.TrustDomain = operator.TRUST_DOMAIN,
    plaintext: operator.Plaintext = False,
) -> None:
    """Show why the router sent sessions to the replicas that it chose: the predicted wait there and
    on the runner-up, term by term."""
    if text is not None and request:
        raise InvalidRequestError("give a prompt or --request, not both")
    flags = (certificate, private_key, ca, trust_domain, plaintext)
    to = router_choice.choose(state_dir, router, flags)
    name = _model_name(model, (state_dir or default_state_dir()).resolve(), is_here=to.is_here)
    answer = asyncio.run(_ask(to.address, _asked(text, request, last, name), to.tls))
    if request and not answer.placements:
        raise InvalidRequestError(
            f"the router knows no request {request!r}; it remembers the latest ones only, and "
            "`outrider chat --json` prints a chat's request_id"
        )
    if as_json:
        # Imported here, as grpc is below: `outrider --help` needs neither.
        from google.protobuf.json_format import MessageToJson

        print(MessageToJson(answer, preserving_proto_field_name=True, indent=None))
        return
    if not answer.placements:
        print("no placement is known yet; routers remember the latest ones only")
    for placement in answer.placements:
        print("\n".join(lines(placement)))


def _asked(text: str | None, request: str, last: int, model: str) -> router_pb2.ExplainRequest:
    from outrider.v1 import common_pb2, inference_pb2, router_pb2

    if text is None:
        return router_pb2.ExplainRequest(request_id=request, max_placements=last)
    message = common_pb2.ChatMessage(role="user", content=text)
    messages = inference_pb2.PromptMessages(messages=[message])
    what_if = inference_pb2.OpenSession(model=model, messages=messages)
    return router_pb2.ExplainRequest(what_if=what_if)


def _model_name(model: str, state: Path, *, is_here: bool) -> str:
    """Raises InvalidRequestError for a file or a source where a mesh elsewhere is asked,
    UnknownModelError for one that the mesh here does not serve."""
    if is_here:
        return served_name(model, state / "config" / "edge.toml")
    if not is_name(model):
        raise InvalidRequestError(
            "--model takes a name; a mesh elsewhere has no access to your files"
        )
    return model


async def _ask(
    address: str, asked: router_pb2.ExplainRequest, tls: Tls
) -> router_pb2.ExplainResponse:
    import grpc.aio

    from outrider.rpc import from_rpc_error, make_channel
    from outrider.tls import Role
    from outrider.v1 import router_pb2_grpc

    async with make_channel(address, tls=tls, role=Role.ROUTER) as channel:
        stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(channel)
        try:
            return await stub.Explain(asked, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


def lines(placement: router_pb2.Placement) -> Iterator[str]:
    """One decision as text."""
    what = placement.request_id or "(no id)"
    yield (
        f"{what}: {placement.prompt_tokens} prompt tokens for {placement.model}, "
        f"{placement.age_ms / 1000.0:.1f} s ago, decided in {placement.decision_ms:.2f} ms "
        f"among {placement.able}; predicted, in ms:"
    )
    rows = [_HEAD, _row("chosen", placement.chosen)]
    if placement.HasField("runner_up"):
        rows.append(_row("runner-up", placement.runner_up))
    yield from columns(rows, num_names=_NUM_NAMES, indent="  ")
    if placement.HasField("runner_up"):
        yield f"  margin {placement.margin_ms:+.1f} ms"
    shown = {placement.chosen.replica, placement.runner_up.replica}
    others = [c for c in placement.considered if c.replica not in shown]
    if others:
        listed = ", ".join(f"{c.replica} {c.wait_ms:.1f} ms" for c in others)
        yield f"  then {listed}"


_HEAD = (
    *("", "replica", "region", "identity"),
    *("wait", "rtt", "slot", "memory", "queue", "transfer", "prefill", "cached tokens"),
)
_NUM_NAMES = 4
"""Columns to the left of the numbers."""


def _row(label: str, candidate: router_pb2.PlacementCandidate) -> Sequence[str]:
    terms = (
        candidate.wait_ms,
        candidate.rtt_ms,
        candidate.slot_ms,
        candidate.memory_ms,
        candidate.queue_ms,
        candidate.transfer_ms,
        candidate.prefill_ms,
    )
    numbers = [f"{term:.1f}" for term in terms]
    names = (label, candidate.replica, candidate.region, short_form(candidate.model_identity))
    return (*names, *numbers, str(candidate.cached_tokens))
