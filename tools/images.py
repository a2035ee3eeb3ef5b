"""Build the images, and run a mesh of what was built.

python -m tools.images build [--base IMAGE | --debian] [--platform P] [ROLE ...]
python -m tools.images check [ROLE ...]      as root, with every role built

`build` uses Docker if its daemon answers, else buildah. `--debian` makes the base here, from
Debian's archive with mmdebstrap, where no registry can be reached.

`check` runs the images' own commands in their own file systems as a container runtime does (read
only but for /tmp and volumes, user 10001, no capabilities), with this machine's network and
processes: a replica in each of two regions, a tokenizer, a router, an edge. It asks the edge over
QUIC and over HTTP, and looks at size, user, SBOM and licences.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from outrider.models.catalog import DEFAULT_MODEL

ROOT: Final = Path(__file__).resolve().parent.parent
ROLES: Final = ("router", "tokenizer", "inference", "edge")
TAG: Final = "0.1.0"
DEBIAN_BASE: Final = "outrider-debian-base:bookworm"
DEBIAN_PACKAGES: Final = "python3,python3-venv,ca-certificates"
USER: Final = 10001
MAX_SIZE_MIB: Final = {"router": 700, "tokenizer": 800, "edge": 1500, "inference": 1500}
"""Of an image's files, its base included."""
# Where a machine trusts certificates or an index of its own, the build does.
_PIP_FILES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")


def image(role: str) -> str:
    """The name that a role's image gets."""
    return f"outrider-{role}:{TAG}"


def docker_answers() -> bool:
    """Whether a Docker daemon can be used."""
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(["docker", "version"], capture_output=True, check=False)
    return done.returncode == 0


def buildah(*arguments: str, capture: bool = False) -> str:
    """Run buildah; its output, if captured. Raises CalledProcessError."""
    # Neither overlays nor namespaces: it works inside a container, too.
    environ = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot", **os.environ}
    done = subprocess.run(
        ["buildah", *arguments],
        check=True,
        env=environ,
        text=True,
        stdout=subprocess.PIPE if capture else None,
    )
    return (done.stdout or "").strip()


def build_command(role: str, base: str, platform: str, *, docker: bool) -> list[str]:
    """The arguments, after the engine's name, that build one image."""
    command = ["build"] if docker else ["bud", "--format", "docker", "--layers"]
    command += ["--file", "deploy/docker/Dockerfile", "--target", role, "--tag", image(role)]
    if base:
        command += ["--build-arg", f"PYTHON_IMAGE={base}"]
    if platform:
        command += ["--platform", platform]
    if not docker:
        for path in filter(os.path.exists, _PIP_FILES):
            command += ["--volume", f"{path}:{path}:ro"]
    return [*command, "."]


def make_debian_base(*, docker: bool) -> str:
    """Make a base of Debian 12 by mmdebstrap, and return its name."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = str(Path(scratch) / "base.tar")
        options = ["--variant=minbase", f"--include={DEBIAN_PACKAGES}", "bookworm", archive]
        subprocess.run(["mmdebstrap", "--quiet", *options], check=True)
        if docker:
            subprocess.run(["docker", "import", archive, DEBIAN_BASE], check=True)
        else:
            container = buildah("from", "scratch", capture=True)
            buildah("add", "--quiet", container, archive, "/")
            buildah("commit", "--quiet", "--rm", container, DEBIAN_BASE)
    return DEBIAN_BASE


def build(roles: Sequence[str], base: str, platform: str, *, debian: bool) -> None:
    """Build the images of some roles. Raises CalledProcessError."""
    docker = docker_answers()
    if debian:
        base = make_debian_base(docker=docker)
    for role in roles:
        command = build_command(role, base, platform, docker=docker)
        if docker:
            subprocess.run(["docker", *command], check=True, cwd=ROOT)
        else:
            os.chdir(ROOT)
            buildah(*command)
        print(f"built {image(role)}", flush=True)


class Image:
    """A built image, with its files in a folder."""

    def __init__(self, role: str, root: Path, config: dict[str, Any]) -> None:
        self.role = role
        self.root = root
        self.config = config

    @property
    def environ(self) -> dict[str, str]:
        """The environment that it gives its processes."""
        return dict(it.split("=", 1) for it in self.config["Env"])

    @property
    def command(self) -> list[str]:
        """What it runs by default."""
        return [*self.config["Entrypoint"], *self.config["Cmd"]]

    def problems(self) -> Iterator[str]:
        """What is wrong with how it was built."""
        if self.config.get("User") != f"{USER}:{USER}":
            yield f"{self.role}: it runs as {self.config.get('User') or 'root'}"
        megabytes = self.size_bytes() >> 20
        if megabytes > MAX_SIZE_MIB[self.role]:
            yield f"{self.role}: {megabytes} MiB, more than {MAX_SIZE_MIB[self.role]}"
        share = self.root / "opt/outrider/share"
        bom = json.loads((share / "sbom.cdx.json").read_text("utf-8"))
        names = {it["name"].lower() for it in bom["components"]}
        missing = {"outrider", "grpcio", "opentelemetry-exporter-otlp-proto-http"} - names
        if missing or bom["bomFormat"] != "CycloneDX":
            yield f"{self.role}: its SBOM lacks {sorted(missing)}"
        if not any((share / "licenses").glob(f"outrider-{TAG}/LICENSE*")):
            yield f"{self.role}: its licences are missing"

    def size_bytes(self) -> int:
        """Of all its files."""
        done = subprocess.run(
            ["du", "--summarize", "--bytes", "--one-file-system", str(self.root)],
            check=True,
            capture_output=True,
            text=True,
        )
        return int(done.stdout.split()[0])

    def start(
        self,
        command: Sequence[str],
        volumes: dict[Path, str],
        log: Path,
        environ: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command in the image: read-only, as its user, without capabilities."""
        root = shlex.quote(str(self.root))
        steps = [
            f"mount --bind {root} {root}",
            f"mount -o remount,bind,ro {root}",
            f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",
            f"mount --rbind /dev {root}/dev",
            f"mount -t proc proc {root}/proc",
            *(
                f"mount --bind {shlex.quote(str(source))} {root}{target}"
                for source, target in volumes.items()
            ),
        ]
        variables = {**self.environ, **(environ or {})}
        inner = shlex.join(
            [
                *("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
                *("--reuid", str(USER), "--regid", str(USER), "--clear-groups"),
                *("env", "-i", *(f"{key}={value}" for key, value in variables.items())),
                *command,
            ]
        )
        script = " && ".join([*steps, f"exec chroot {root} {inner}"])
        with log.open("wb") as output:
            return subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )


@contextmanager
def opened(role: str) -> Iterator[Image]:
    """A built image, its files in a folder while it is open."""
    if docker_answers():
        name = image(role)
        told = subprocess.run(
            ["docker", "image", "inspect", name], check=True, capture_output=True, text=True
        )
        made = subprocess.run(
            ["docker", "create", name], check=True, capture_output=True, text=True
        ).stdout.strip()
        try:
            with tempfile.TemporaryDirectory() as scratch:
                export = subprocess.Popen(["docker", "export", made], stdout=subprocess.PIPE)
                subprocess.run(["tar", "-x", "-C", scratch], check=True, stdin=export.stdout)
                yield Image(role, Path(scratch), json.loads(told.stdout)[0]["Config"])
        finally:
            subprocess.run(["docker", "rm", made], check=True, capture_output=True)
        return
    container = buildah("from", "--pull-never", f"localhost/{image(role)}", capture=True)
    try:
        root = Path(buildah("mount", container, capture=True))
        told = json.loads(buildah("inspect", container, capture=True))
        yield Image(role, root, told["Docker"]["config"])
    finally:
        buildah("rm", container, capture=True)


def free_port() -> int:
    """A port of this machine that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(what: str, it_is: Callable[[], bool], limit_s: float = 300) -> None:
    """Wait for something that other processes do. Raises TimeoutError."""
    end = time.monotonic() + limit_s
    while not it_is():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not after {limit_s:.0f} s")
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Whether a URL is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


class Mesh:
    """Every role, from its image, on this machine's loopback."""

    def __init__(self, images: dict[str, Image], folder: Path, cleanup: ExitStack) -> None:
        self.images = images
        self.folder = folder
        self.cleanup = cleanup
        self.state = folder / "state"
        self.state.mkdir()
        os.chown(self.state, USER, USER)

    def volumes(self, config: Path | None = None) -> dict[Path, str]:
        """The model store, the edge's state and a folder of settings, at their places."""
        found = {
            self.folder / "models": "/var/lib/outrider/models",
            self.state: "/var/lib/outrider/state",
        }
        return {**found, config: "/etc/outrider"} if config else found

    def serve(self, name: str, role: str, toml: str) -> int:
        """Start a role by the image's own command, with a file of settings where it looks for one.
        Returns its admin port, once it is alive."""
        admin = free_port()
        config = self.folder / name
        config.mkdir()
        admin_table = f'\n[{role}.admin]\nhost = "127.0.0.1"\nport = {admin}\n'
        plain = f"\n[{role}.tls]\nallow_plaintext = true\n"
        (config / f"{role}.toml").write_text(f"[{role}]\n{toml}{admin_table}{plain}", "utf-8")
        it = self.images[role]
        process = it.start(it.command, self.volumes(config), self.folder / f"{name}.log")
        self.cleanup.callback(_stop, process)
        print(f"  started {name}", flush=True)
        wait_until(
            f"{name} alive",
            lambda: process.poll() is not None or answers(f"http://127.0.0.1:{admin}/health"),
        )
        if process.poll() is not None:
            said = (self.folder / f"{name}.log").read_text("utf-8")
            raise RuntimeError(f"{name} ended with {process.returncode}: {said[-2000:]}")
        return admin

    def run(self, role: str, *command: str) -> str:
        """What a command says in an image. Raises RuntimeError if it fails."""
        log = self.folder / "command.log"
        process = self.images[role].start(command, self.volumes(), log)
        status = process.wait(timeout=300)
        said = log.read_text("utf-8")
        if status != 0:
            raise RuntimeError(f"{shlex.join(command)} ended with {status}: {said[-2000:]}")
        return said


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def chat(mesh: Mesh) -> None:
    """Start the roles, and stream a reply by QUIC and one by HTTP, which have to be the same."""
    subprocess.run(
        [Path(sys.executable).parent / "outrider", "models", "pull", DEFAULT_MODEL.name],
        check=True,
        env={**os.environ, "OUTRIDER_MODEL_STORE": str(mesh.folder / "models")},
    )
    subprocess.run(["chown", "-R", f"{USER}:{USER}", str(mesh.folder / "models")], check=True)
    ports = {name: free_port() for name in ("us-east", "eu-west", "tokenizer", "router", "edge")}
    admins = {}
    for region in ("us-east", "eu-west"):
        settings = (
            f'port = {ports[region]}\nregion = "{region}"\nreplica = "{region}"\nthreads = 1\n'
        )
        admins[region] = mesh.serve(region, "inference", settings)
    for region, admin in admins.items():
        wait_until(f"{region} ready", partial(answers, f"http://127.0.0.1:{admin}/ready"))
    mesh.serve("tokenizer", "tokenizer", f"port = {ports['tokenizer']}\n")
    replicas = "".join(
        f'\n[[router.replicas]]\nname = "{it}"\nregion = "{it}"\n'
        f'address = "127.0.0.1:{ports[it]}"\n'
        for it in ("us-east", "eu-west")
    )
    tokenizers = f'tokenizers = ["127.0.0.1:{ports["tokenizer"]}"]\n'
    settings = f'port = {ports["router"]}\nregion = "us-east"\n{tokenizers}{replicas}'
    mesh.serve("router", "router", settings)
    mesh.run(
        "edge",
        "sh",
        "-c",
        "cd /var/lib/outrider/state && outrider keys create check --keys-file keys.json > key",
    )
    settings = (
        f'port = {ports["edge"]}\nrouters = ["127.0.0.1:{ports["router"]}"]\nregion = "us-east"\n'
        'state_dir = "/var/lib/outrider/state"\nanonymous = true\n'
        '\n[edge.access]\nkeys_file = "/var/lib/outrider/state/keys.json"\n'
        f'\n[edge.http]\nport = {ports["edge"]}\ntls = "off"\n'
    )
    admin = mesh.serve("edge", "edge", settings)
    wait_until("edge ready", lambda: answers(f"http://127.0.0.1:{admin}/ready"))
    prompt = "What is photosynthesis? In one sentence."
    by_quic = mesh.run(
        *("edge", "outrider", "chat", "--edge", f"127.0.0.1:{ports['edge']}"),
        *("--ca", "/var/lib/outrider/state/tls/cert.pem"),
        *("--prompt", prompt, "--max-tokens", "24", "--temperature", "0"),
    )
    print(f"  QUIC: {by_quic.strip()}", flush=True)
    asked = {
        "messages": [{"role": "user", "content": prompt}],
        **{"max_tokens": 24, "temperature": 0, "stream": True},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{ports['edge']}/v1/chat/completions",
        json.dumps(asked).encode(),
        {
            "Authorization": f"Bearer {(mesh.state / 'key').read_text('utf-8').strip()}",
            "Content-Type": "application/json",
        },
    )
    by_http = ""
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            data = line.decode().removeprefix("data: ").strip()
            if data.startswith("{") and (choices := json.loads(data)["choices"]):
                by_http += choices[0]["delta"].get("content") or ""
    print(f"  HTTP: {by_http.strip()}", flush=True)
    if not by_http.strip() or by_http.strip() not in by_quic:
        raise RuntimeError("the reply over HTTP is not the one over QUIC")


def check(roles: Sequence[str]) -> int:
    """Check built images; returns the exit status. The mesh runs if every role is given."""
    failed = False
    with ExitStack() as cleanup:
        images = {role: cleanup.enter_context(opened(role)) for role in roles}
        for role, it in images.items():
            found = list(it.problems())
            print(f"{'FAIL' if found else 'ok  '} {role}: {it.size_bytes() / 1e6:.0f} MB")
            print("".join(f"       {problem}\n" for problem in found), end="", flush=True)
            failed = failed or bool(found)
        if set(roles) == set(ROLES):
            folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
            folder.chmod(0o755)
            with ExitStack() as processes:
                chat(Mesh(images, folder, processes))
            print("ok   a mesh of the images answers over QUIC and HTTP, alike")
    return int(failed)


def main(arguments: list[str]) -> int:
    """Build or check; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("verb", choices=("build", "check"))
    parser.add_argument("roles", nargs="*", metavar="ROLE", help="by default all that run on CPUs")
    parser.add_argument("--base", default=os.environ.get("PYTHON_IMAGE", ""), help="PYTHON_IMAGE")
    parser.add_argument("--debian", action="store_true", help="make a base of Debian 12 here")
    parser.add_argument("--platform", default="", help="such as linux/arm64")
    told = parser.parse_args(arguments)
    if told.verb == "check":
        return check(told.roles or ROLES)
    build(told.roles or ROLES, told.base, told.platform, debian=told.debian)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
