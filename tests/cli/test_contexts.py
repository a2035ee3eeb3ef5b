"""Saved contexts: the file, which one a command is for, and commands that go there."""

from __future__ import annotations

import itertools
import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from bench.harness.local_mesh import LocalMesh
from outrider.access.client_key import DEVELOPMENT_KEY
from outrider.cli import contexts
from outrider.cli.contexts import Context, Contexts, choose, parse, to_text
from outrider.cli.local.certificates import OPERATOR, of_process
from outrider.errors import ConfigError, InvalidRequestError, OutriderError
from outrider.testing import free_tcp_port
from tests.cli.invoking import invoke

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20)
SAVED = st.builds(
    Context,
    **dict.fromkeys(("ca", "key_file", "user", "certificate", "trust_domain"), TEXTS),
    edge=st.just("edge.example:4433"),
    router=st.sampled_from(["", "router.example:7100"]),
    plaintext=st.booleans(),
)
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)


@given(st.dictionaries(NAMES, SAVED, max_size=4), st.data())
def test_what_is_saved_is_read_again(by_name: dict[str, Context], data: st.DataObject) -> None:
    current = data.draw(st.sampled_from(["", *by_name]))
    saved = Contexts(current, by_name)
    assert parse(to_text(saved), "f") == saved


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("current = ", "not valid TOML"),
        ("current = 1", "takes current, which is text"),
        ('current = "x"', "has no such context"),
        ("contexts.a = 1", "must be a table"),
        ("[contexts.a]", "leads nowhere"),
        ('[contexts.a]\nedge = "here"', "--edge"),
        ('[contexts.a]\nedgy = "h:1"', "has no key 'edgy'"),
        ('[contexts.a]\nedge = "h:1"\nca = 1', "ca must be text"),
        ('[contexts.a]\nedge = "h:1"\nplaintext = "no"', "plaintext must be true or false"),
        ('[contexts."a b"]\nedge = "h:1"', "is no name for a context"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match="f") as caught:
        parse(text, "f")
    assert told in caught.value.message


def test_flags_go_before_the_variable_and_the_variable_before_the_one_in_use() -> None:
    saved = Contexts("used", {name: Context(edge="h:1") for name in ("flag", "variable", "used")})
    unused = saved.use("")
    for flag, variable, one, has_place in itertools.product(
        ("", "flag"), ("", "variable"), (saved, unused), (False, True)
    ):
        if flag and has_place:
            with pytest.raises(InvalidRequestError, match="leave out --edge"):
                choose(one, flag, variable, has_place=has_place)
            continue
        expected = "" if has_place else flag or variable or one.current
        assert choose(one, flag, variable, has_place=has_place) == expected
    with pytest.raises(InvalidRequestError, match="no context 'nix'"):
        choose(saved, "nix", "", has_place=False)


def test_contexts_are_bounded_and_replaced_on_demand_alone() -> None:
    one = Context(edge="h:1")
    full = Contexts("", {str(number): one for number in range(contexts.MAX_CONTEXTS)})
    with pytest.raises(InvalidRequestError, match="which is the limit"):
        full.add("another", one, may_replace=False)
    with pytest.raises(InvalidRequestError, match="give --replace"):
        full.add("1", one, may_replace=False)
    other = Context(edge="h:2")
    assert full.add("1", other, may_replace=True).get("1") == other
    assert full.use("1").remove("1").current == ""


# --- commands ---


class Shell:
    """Runs `outrider` as a user with a configuration folder of its own, the current one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._variables = {
            "XDG_CONFIG_HOME": str(folder / "config"),
            "OUTRIDER_STATE_DIR": str(folder / "no-mesh"),
            "OUTRIDER_API_KEY": None,
        }

    def says(self, *words: str, **variables: str) -> str:
        """Its output where all is well."""
        done = self._run(words, variables)
        assert done.exit_code == 0, done.exception
        return done.stdout

    def refuses(self, *words: str) -> str:
        """Why it does not."""
        done = self._run(words, {})
        assert isinstance(done.exception, OutriderError)
        return done.exception.message

    def _run(self, words: Sequence[str], variables: Mapping[str, str]) -> Result:
        return invoke(words, env={**self._variables, **variables})


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


def test_contexts_are_added_used_shown_and_removed(shell: Shell) -> None:
    assert "no context is saved" in shell.says("context", "list")
    (shell.folder / "ca.pem").write_text("pem")
    told = shell.says("context", "add", "prod", "--edge", "h:4433", "--ca", "ca.pem")
    assert told == "saved context prod; `outrider context use prod` uses it\n"
    told = shell.says("context", "add", "test", "--router", "r:7100", "--plaintext", "--use")
    assert told.splitlines()[-1] == "commands go to context test from now on"
    assert shell.says("context", "list").splitlines()[1:] == [
        "  prod  h:4433  -",
        "* test  -       r:7100",
    ]
    listed = json.loads(shell.says("context", "list", "--json"))
    ca = str(shell.folder / "ca.pem")
    assert listed == {
        "current": "test",
        "contexts": {
            "prod": {"edge": "h:4433", "ca": ca},
            "test": {"router": "r:7100", "plaintext": True},
        },
    }
    shell.says("context", "use", "prod")
    assert json.loads(shell.says("context", "show", "--json"))["name"] == "prod"
    shell.says("context", "remove", "prod")
    assert json.loads(shell.says("context", "list", "--json"))["current"] == ""
    file = shell.folder / "config" / "outrider" / "contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("context use nix", "there is no context 'nix'"),
        ("context use", "give the name of a context, or --none"),
        ("context show", "no context is in use"),
        ("context add a", "leads nowhere"),
        ("context add a --edge h:1 --ca nix.pem", "there is no file nix.pem"),
        ("chat hello --context nix", "there is no context 'nix'"),
    ],
)
def test_what_cannot_be_done_is_said(words: str, told: str, shell: Shell) -> None:
    assert told in shell.refuses(*words.split())


def test_a_mesh_that_cannot_be_reached_is_said_with_its_context(shell: Shell) -> None:
    address = f"127.0.0.1:{free_tcp_port()}"
    shell.says("context", "add", "away", "--router", address, "--plaintext", "--use")
    told = shell.refuses("status")
    assert f"the router at {address} does not answer" in told
    assert told.endswith("(context away)")
    assert "names no edge" in shell.refuses("chat", "hello")


@pytest.mark.e2e
def test_commands_go_where_the_context_says(mesh: LocalMesh, shell: Shell) -> None:
    folder = mesh.state_dir
    host = mesh.state.host
    (edge,), (router,) = mesh.services("edge"), mesh.services("router")
    operator = of_process(folder, OPERATOR)
    shell.says(
        *("context", "add", "here", "--edge", f"{host}:{edge['port']}"),
        *("--ca", str(folder / "tls" / "cert.pem"), "--key-file", str(folder / DEVELOPMENT_KEY)),
        *("--router", f"{host}:{router['port']}", "--router-ca", str(operator.ca)),
        *("--certificate", str(operator.certificate), "--private-key", str(operator.private_key)),
    )
    chat = ("chat", "hello", "--max-tokens", "4", "--json")
    assert json.loads(shell.says(*chat, "--context", "here"))["text"]
    assert json.loads(shell.says(*chat, OUTRIDER_CONTEXT="here"))["text"]
    assert "no mesh is up in" in shell.refuses(*chat)
    shell.says("context", "use", "here")
    assert json.loads(shell.says(*chat))["text"]
    assert json.loads(shell.says("status", "--json"))["replicas"][0]["state"] == "READY"
    assert "prompt tokens" in shell.says("explain", "--last", "1")
    elsewhere = ("--state-dir", str(shell.folder / "elsewhere"))
    assert "no mesh is up" in shell.refuses("status", *elsewhere), "it says where to go itself"
