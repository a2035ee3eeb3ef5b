"""Services that start with an empty store, from a peer and from a bucket that do not behave."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from outrider.children import start
from outrider.mirrors.manifest import shard_name
from outrider.mirrors.push import make_manifest, push
from outrider.mirrors.s3 import S3Mirror
from outrider.models.store import ModelStore
from outrider.process import Ports, read_ports
from outrider.testing import eventually
from outrider.tls import Role, TlsConfig
from tests.e2e.tiny_models import write_tiny
from tests.mirrors.cutting_relay import cutting_relay
from tests.mirrors.models import flipped
from tests.s3_server import s3_server
from tests.tls.issuing import Issuer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@contextmanager
def running(ready: Path, *arguments: str, env: Mapping[str, str]) -> Iterator[None]:
    """A process of the command line, ended with the context; its output is beside its ready
    file."""
    with ready.with_suffix(".log").open("wb") as sink:
        process = start(
            (sys.executable, "-m", "outrider.cli.main", *arguments, "--ready-file", str(ready)),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, **env},
            ends_with_parent=signal.SIGTERM,
        )
        try:
            yield
        finally:
            process.terminate()
            process.join()


async def ports(ready: Path) -> Ports:
    """Of a process, once it serves."""
    await eventually(lambda: read_ports(ready) is not None, timeout_s=120)
    found = read_ports(ready)
    assert found is not None
    return found


def flags(tls: TlsConfig) -> tuple[str, ...]:
    """Of the command line."""
    given = {"certificate": tls.certificate, "private-key": tls.private_key, "ca": tls.ca}
    return tuple(word for name, path in given.items() for word in (f"--{name}", str(path)))


def replica_file(folder: Path, name: str, sha256: str, sources: list[str], tls: TlsConfig) -> Path:
    """Of a replica with an empty store."""
    file = folder / f"{name}.toml"
    file.write_text(
        f'[models.tiny]\nsource = "sha256:{sha256}"\n'
        f'[inference]\nmodel = "tiny"\nmodel_store = "{folder / name}"\nport = 0\nregion = "here"\n'
        f'state_dir = "{folder}"\nmax_fixed_rows = 0\nwarm_up_rows = 0\nkv_bytes = 67108864\n'
        f"[inference.mirrors]\nsources = {sources}\n"
        f'[inference.tls]\ncertificate = "{tls.certificate}"\n'
        f'private_key = "{tls.private_key}"\nca = "{tls.ca}"\n'
    )
    return file


def others_file(folder: Path, sha256: str, port: int, issuer: Issuer) -> Path:
    """Of an edge, its drafter and a tokenizer, whose stores are empty, and which ask the peer."""
    source, draft = f'source = "sha256:{sha256}"\n', 'draft = "tiny"\n'
    text = f"[models.tiny]\n{source}[models.small]\n{source}{draft}"
    for role in (Role.EDGE, Role.TOKENIZER):
        name, tls = role.value, issuer.config(role)
        text += (
            f'[{name}]\nmodels = ["small"]\nmodel_store = "{folder / name}"\nport = 0\n'
            f'[{name}.mirrors]\nsources = ["peer://127.0.0.1:{port}"]\n'
            f'[{name}.tls]\ncertificate = "{tls.certificate}"\n'
            f'private_key = "{tls.private_key}"\nca = "{tls.ca}"\n'
        )
    file = folder / "others.toml"
    file.write_text(text)
    return file


async def test_edges_drafters_and_tokenizers_start_from_a_peer(tmp_path: Path) -> None:
    weights, origin = write_tiny(tmp_path / "tiny.gguf", 0.2), ModelStore(tmp_path / "origin")
    sha256 = origin.pull(f"file:{weights}").sha256
    issuer = Issuer(tmp_path / "tls")
    ready = {name: tmp_path / f"{name}.json" for name in ("peer", "edge", "tokenizer")}
    with ExitStack() as stack:
        command = ("models", "serve", "--port", "0", "--store", str(origin.root))
        own = flags(issuer.config(Role.MODELS))
        stack.enter_context(running(ready["peer"], *command, *own, env={}))
        port = (await ports(ready["peer"])).main
        file = str(others_file(tmp_path, sha256, port, issuer))
        # Which faster backends equal it takes a minute to find out, once for each vocabulary.
        edge = ["tokenization.backend=tokenizers", f"state_dir={tmp_path}", "routers=127.0.0.1:1"]
        for name, settings in (("edge", edge), ("tokenizer", ["backend=tokenizers"])):
            given = (word for it in settings for word in ("--set", it))
            serve = ("serve", name, "--config", file, *given)
            stack.enter_context(running(ready[name], *serve, env={}))
        await ports(ready["tokenizer"])
        log = ready["edge"].with_suffix(".log")
        await eventually(lambda: "draft_model_loaded" in log.read_text(), timeout_s=120)
    for name in ("edge", "tokenizer"):
        path = ModelStore(tmp_path / name).path(f"sha256:{sha256}")
        assert path.read_bytes() == weights.read_bytes()


async def test_replicas_start_from_a_peer_and_from_a_bucket(tmp_path: Path) -> None:
    weights, origin = write_tiny(tmp_path / "tiny.gguf", 0.2), ModelStore(tmp_path / "origin")
    artifact = origin.pull(f"file:{weights}")
    sha256, manifest = artifact.sha256, make_manifest(artifact.path, 1 << 20)
    (tmp_path / "s3" / "models").mkdir(parents=True)
    issuer = Issuer(tmp_path / "tls")
    own, theirs = issuer.config(Role.MODELS), issuer.config(Role.INFERENCE, "here")
    ready = {name: tmp_path / f"{name}.json" for name in ("peer", "one", "two")}
    with ExitStack() as stack:
        bucket = stack.enter_context(s3_server(tmp_path / "s3"))
        environment = bucket.environment()
        objects = S3Mirror("s3://models/weights", environment)
        push(artifact.path, manifest, objects)
        # Its first shard is not what the manifest says.
        first = artifact.path.read_bytes()[: 1 << 20]
        objects.put(shard_name(sha256, 0), flipped(first))

        command = ("models", "serve", "--port", "0", "--store", str(origin.root), *flags(own))
        stack.enter_context(running(ready["peer"], *command, env={}))
        port = (await ports(ready["peer"])).main
        async with cutting_relay(port) as relay:
            # Behind the manifest, over TLS: a link that is cut in the middle of the model.
            relay.cuts = [10**9, weights.stat().st_size // 2]
            cut = replica_file(tmp_path, "one", sha256, [f"peer://127.0.0.1:{relay.port}"], theirs)
            lied_to = replica_file(
                tmp_path, "two", sha256, ["s3://models/weights", f"peer://127.0.0.1:{port}"], theirs
            )
            for name, file in (("one", cut), ("two", lied_to)):
                serve = ("serve", "inference", "--config", str(file), "--set", "engine=fake")
                stack.enter_context(running(ready[name], *serve, env=environment))
            admin = [(await ports(ready[name])).admin for name in ("one", "two")]
            assert relay.num_cut == 1
        for one in admin:
            with await asyncio.to_thread(urlopen, f"http://127.0.0.1:{one}/ready") as answer:
                assert answer.status == 200
    for name in ("one", "two"):
        path = ModelStore(tmp_path / name).path(f"sha256:{sha256}")
        assert path.read_bytes() == weights.read_bytes()
    logs = [ready[name].with_suffix(".log").read_text() for name in ("one", "two")]
    assert "shard_broke_off" in logs[0]
    assert "have another digest than its manifest says" in logs[1]
