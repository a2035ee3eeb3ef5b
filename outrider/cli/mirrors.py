"""`outrider models manifest`, `push` and `serve`, and the mirrors that `pull --from` names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from outrider import process
from outrider.cli.models import Json, Store, failures, held_artifact, open_store, progress_bar
from outrider.mirrors.manifest import DEFAULT_SHARD_BYTES
from outrider.mirrors.push import make_manifest
from outrider.mirrors.push import push as push_model
from outrider.mirrors.server import ModelServer, ServerConfig
from outrider.telemetry.logs import configure_logging
from outrider.tls import Role, Tls, TlsConfig

MIB = 1 << 20
_SERVER = ServerConfig()
Certificate = Annotated[Path | None, typer.Option(help="PEM certificate of this process.")]
PrivateKey = Annotated[Path | None, typer.Option(help="PEM key of --certificate.")]
Ca = Annotated[Path | None, typer.Option(help="PEM certificate of the mesh's CA.")]
TrustDomain = Annotated[str, typer.Option(help="Trust domain of the mesh's certificates.")]
Plaintext = Annotated[
    bool, typer.Option("--plaintext", help="Serve other machines without certificates.")
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name or source of the model.")]
ShardMib = Annotated[
    int, typer.Option("--shard-mib", min=1, max=256, help="Size of the shards, in MiB.")
]


def manifest(
    model: Model, shard_mib: ShardMib = DEFAULT_SHARD_BYTES // MIB, store: Store = None
) -> None:
    """Print a model's manifest: the sha256 of the model and of each of its shards."""
    with failures(as_json=False):
        artifact = held_artifact(open_store(store), model)
        print(make_manifest(artifact.path, shard_mib * MIB).to_json(), end="")


def push(
    model: Model,
    mirror: Annotated[str, typer.Argument(help="The mirror: s3://BUCKET/PREFIX or file:PATH.")],
    shard_mib: ShardMib = DEFAULT_SHARD_BYTES // MIB,
    connections: Annotated[
        int, typer.Option(min=1, max=64, help="Number of shards to send at once.")
    ] = 4,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Send shards again that the mirror has.")
    ] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Copy a model from the store to a mirror, from which `pull --from` and replicas fetch it.

    Shards that the mirror has are skipped. Buckets use the variables of AWS's own tools:
    AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    """
    from outrider.mirrors.opening import open_writable

    with failures(as_json):
        target = open_writable(mirror)
        artifact = held_artifact(open_store(store), model)
        found = make_manifest(artifact.path, shard_mib * MIB)
        with progress_bar(model, as_json) as report:
            sent_bytes = push_model(
                artifact.path,
                found,
                target,
                connections=connections,
                refresh=refresh,
                report=report,
            )
    if as_json:
        facts = {"sha256": found.sha256, "num_bytes": found.num_bytes, "mirror": target.text}
        print(json.dumps(facts | {"num_shards": len(found.shards), "sent_bytes": sent_bytes}))
        return
    print(f"{target.text} has {model}: {found.num_bytes} bytes, {sent_bytes} of them sent now")
    print(f'in its definition: sha256 = "{found.sha256}"')


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = _SERVER.host,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = _SERVER.port,
    certificate: Certificate = None,
    private_key: PrivateKey = None,
    ca: Ca = None,
    trust_domain: TrustDomain = TlsConfig().trust_domain,
    plaintext: Plaintext = False,
    max_mb_s: Annotated[
        float,
        typer.Option(
            min=0,
            max=100_000,
            help="Limit on the transfer to all, in megabytes per second; 0: none.",
        ),
    ] = _SERVER.max_mb_s,
    max_connections: Annotated[
        int,
        typer.Option(min=1, max=10_000, help="Most connections at once; further ones are closed."),
    ] = _SERVER.max_connections,
    shard_mib: ShardMib = DEFAULT_SHARD_BYTES // MIB,
    store: Store = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="File to write, as JSON with the port, once it serves.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="Lowest level that is logged.")] = "info",
) -> None:
    """Serve the models of the store, read-only, to other processes of the mesh, until Ctrl-C or
    SIGTERM.

    They fetch from `peer://HOST:PORT`. With certificates (role `models`) edges, tokenizers,
    replicas and operators may fetch; without certificates, only processes of this machine. Models
    that are pulled later are served too.
    """
    configure_logging("models", log_level)
    tls = Tls.open(TlsConfig(certificate, private_key, ca, trust_domain, plaintext), Role.MODELS)
    config = ServerConfig(host, port, max_connections, max_mb_s, shard_mib * MIB)
    server = ModelServer(open_store(store), config, tls)

    async def run(
        config: ModelServer,
        *,
        ready: Callable[[process.Ports], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> None:
        assert stop is not None, "process.run gives it"
        bound = await config.start()
        async with config.serving():
            print(f"serving the models of {open_store(store).root} at {host}:{bound}", flush=True)
            if ready is not None:
                ready(process.Ports(bound, 0))
            await stop.wait()

    process.run(run, server, ready_file=ready_file)
