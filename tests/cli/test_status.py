"""`outrider status` before a real router, and how it is shown."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from dataclasses import asdict

import pytest

from outrider.children import start_piped
from outrider.cli.local.admin_page import provisional_text, tokenizer_backends
from outrider.cli.local.status_view import lines
from outrider.cli.local.supervisor import LastEnd, ending
from outrider.errors import ConfigError, UnavailableError
from outrider.testing import free_tcp_port
from outrider.v1 import router_pb2
from tests.cli.invoking import invoke
from tests.router.replica import Replica, running_replicas, running_router


async def _asked(port: int, *flags: str) -> str:
    """What the command prints; it has an event loop of its own, so a thread."""
    arguments = ["status", "--router", f"127.0.0.1:{port}", *flags]
    done = await asyncio.to_thread(invoke, arguments, catch_exceptions=False)
    return done.stdout


async def test_the_replicas_of_a_router_are_shown_with_state_and_round_trip() -> None:
    near, absent = Replica("near"), Replica("absent", "eu")
    absent.address = f"127.0.0.1:{free_tcp_port()}"
    async with running_replicas(near), running_router(near, absent) as router:
        await router.state_of("near", router_pb2.REPLICA_STATE_READY)
        await router.state_of("absent", router_pb2.REPLICA_STATE_DOWN)
        port = router.ports.main
        found = json.loads(await _asked(port, "--json"))
        rows = {row["name"]: row for row in found["replicas"]}
        assert rows["near"]["state"] == "READY"
        assert rows["near"]["source"] == "configured"
        assert rows["near"]["min_rtt_ms"] > 0.0
        assert rows["absent"]["min_rtt_ms"] == 0.0
        assert (rows["near"]["identity"], rows["absent"]["identity"]) == (near.identity.hex(), "")
        shown = await _asked(port)
    (model,) = found["models"]
    (region,) = model["regions"]
    assert (model["name"], model["is_default"], model["waiting_sessions"]) == ("m", True, 0)
    assert model["vocabularies"] == [near.digest.hex()]
    assert (region["name"], region["replicas"], region["ready_replicas"]) == ("us", 1, 1)
    assert (region["recent"]["window_s"], region["recent"]["first_tokens"]) == (60.0, 0)
    head, row = (line.split() for line in _section(shown, "MODELS"))
    told = dict(zip(head, row[:1] + row[2:], strict=False))
    assert (told["NAME"], told["REGION"], told["READY"]) == ("m", "us", "1/1")
    _, first, second = _section(shown, "REPLICAS")
    assert first.split()[:4] == ["near", "m", "us", "READY"] and " 0a0a0a0a " in first
    assert second.split()[:4] == ["absent", "unknown", "eu", "DOWN"] and " unknown " in second
    assert " ~100.0 ms " in second, "a guess is marked as one"


def _section(shown: str, heading: str) -> list[str]:
    """The lines under a heading."""
    return shown.partition(f"{heading}\n")[2].split("\n\n")[0].splitlines()


def test_a_router_that_is_not_there_is_said_plainly() -> None:
    address = f"127.0.0.1:{free_tcp_port()}"
    failed = invoke(["status", "--router", address])
    assert isinstance(failed.exception, UnavailableError)
    assert f"the router at {address} does not answer" in str(failed.exception)


@pytest.mark.parametrize("address", ["here", "here:0"])
def test_an_address_is_host_and_port(address: str) -> None:
    failed = invoke(["status", "--router", address])
    assert isinstance(failed.exception, ConfigError)


async def test_watching_shows_it_anew_until_ctrl_c_and_outlives_the_router() -> None:
    near = Replica("near")
    async with running_replicas(near):
        async with running_router(near) as router:
            await router.state_of("near", router_pb2.REPLICA_STATE_READY)
            where = ("--router", f"127.0.0.1:{router.ports.main}", "--plaintext")
            process = await start_piped(
                (
                    # Whoever runs the tests in the background ignores SIGINT; children inherit it.
                    *("env", "--default-signal=INT"),
                    *(sys.executable, "-m", "outrider.cli.main", "status", *where),
                    *("--watch", "--interval", "0.1", "--json"),
                )
            )
            for _ in range(2):
                state = json.loads(await process.stdout.readline())
                assert state["replicas"][0]["name"] == "near"
        while "error" not in state:
            state = json.loads(await process.stdout.readline())
        assert state["error"]["reason"] == "UNAVAILABLE"
        process.send_signal(signal.SIGINT)
        assert await process.finish() == 130


SERVICE = {
    **{"name": "here-0", "role": "inference", "pid": 1, "port": 2, "admin_port": 3},
    **{"is_up": True, "restarts": 0, "last_end": None},
}
RECENT = {
    **{"window_s": 60.0, "first_tokens": 3, "ttft_p50_ms": 12.4, "ttft_p95_ms": 90.0},
    **{"ended": 2, "completion_tokens": 90, "draft_tokens": 40, "accepted_tokens": 30},
}
ADVICE = {"desired_replicas": 3, "late_ratio": 0.25, "utilization_ratio": 1.2}
REGION = {
    **{"name": "us", "replicas": 2, "ready_replicas": 1, "sessions": 4},
    **{"predicted_wait_ms": 7.0, "recent": RECENT, "advice": ADVICE},
}
MODEL = {"name": "m", "is_default": False, "waiting_sessions": 5, "regions": [REGION]}
REPLICA = {
    **{"name": "here-0", "region": "us", "address": "h:1", "source": "dns:h", "model": "m"},
    **{"identity": "0a" * 16, "state": "READY", "state_s": 125.0, "rtt_ms": 1.0},
    **{"min_rtt_ms": 1.0, "predicted_wait_ms": 7.0, "sessions": 4, "running_sessions": 4},
    **{"queued_sessions": 1, "max_sessions": 16, "kv_blocks_total": 8, "kv_blocks_free": 6},
    **{"overload_level": 2, "quarantines": 1, "inconsistent": True},
    "static_prefixes": [],
}
KV = {
    **{"prompt_tokens": 200, "pool_tokens": 100, "store_tokens": 50},
    **{"sync_bytes": 2_500_000, "store_failures": 3},
    **{"peer_tokens": 20, "peer_bytes": 500_000, "peer_failures": 2},
}
REPLICA["kv"] = dict.fromkeys(KV, 0)

MOVE: dict[str, object] = {"left": "here-0", "replica": "here-1", "reason": "REPLICA_LOST"}
MOVE |= {"pause_ms": 480.0, "age_s": 75.0}
TOKENIZER = {
    **{"service": "here-0", "model": "m", "backend": "splintr-rs"},
    "reason": "equal on 5 texts",
    "processes": "2",
}

PROVISIONAL = {
    **{"service": "here-0", "model": "m", "on": 5.0, "off": 14.0, "trial": 1.0},
    **{"tokens": 1000.0, "stayed_tokens": 90.0, "erased_tokens": 10.0, "sooner_s": 4.0},
}


def _shown(**state: object) -> str:
    empty: dict[str, object] = {"host": "h", "services": [], "models": [], "replicas": []}
    empty |= {"tokenizers": [], "moves": [], "provisional": []}
    return "\n".join(lines(empty | state))


def test_a_model_is_shown_with_what_came_of_the_last_minute_and_the_advice() -> None:
    _, row = _section(_shown(models=[MODEL]), "MODELS")
    expected = ["m", "us", "1/2", "3", "4", "5", "7", "ms", "12", "ms", "90", "ms", "1.5"]
    assert row.split() == [*expected, "75%", "25%", "120%"]


def test_where_nothing_came_there_is_nothing_to_tell() -> None:
    recent = dict.fromkeys(RECENT, 0) | {"window_s": 60.0}
    idle = REGION | {"recent": recent, "advice": None, "ready_replicas": 0}
    _, row = _section(_shown(models=[MODEL | {"regions": [idle]}]), "MODELS")
    assert row.split() == ["m", "us", "0/2", "-", "4", "5", *"-------"]


def test_a_replica_is_shown_with_its_load_and_what_is_wrong() -> None:
    shown = _shown(replicas=[REPLICA])
    _, row = _section(shown, "REPLICAS")
    assert "READY, overload 2, quarantined 1x  " in row
    assert row.endswith("2m  1.0 ms  7 ms     4/16       1  25%  0a0a0a0a  h:1 (dns:h)")
    assert "WARNING: here-0 opens sessions as another model" in shown


def test_a_replica_that_has_any_says_where_prompts_kv_came_from() -> None:
    assert "\nKV" not in _shown(replicas=[REPLICA])
    pinned = [{"name": "p", "tokens": 70, "tenants": ["*"]}, {"name": "q", "tokens": 5}]
    shown = _shown(replicas=[REPLICA | {"kv": KV}, REPLICA | {"static_prefixes": pinned}])
    _, first, second = _section(shown, "KV")
    assert first.split() == ["here-0", "0", "200", "50%", "10%", "25%", "3.0", "MB", "2", "3"]
    assert second.split() == ["here-0", "75", "0", "-", "-", "-", "0.0", "MB", "0", "0"]


@pytest.mark.parametrize("max_chars", range(50, 200, 25))
def test_on_a_narrow_terminal_no_column_is_lost_and_no_line_too_long(max_chars: int) -> None:
    state = {"host": "h", "services": [SERVICE], "models": [MODEL], "replicas": [REPLICA] * 2}
    state |= {"tokenizers": [TOKENIZER], "moves": [MOVE], "provisional": [PROVISIONAL]}
    whole, shown = (list(lines(state, limit)) for limit in (None, max_chars))
    tables = shown[:-2]
    assert max(map(len, tables)) <= max_chars
    assert {word for line in whole for word in line.split()} == {
        word for line in shown for word in line.split()
    }
    replicas = _section("\n".join(shown), "REPLICAS")
    for head, *rows in (replicas[at : at + 3] for at in range(0, len(replicas), 3)):
        assert head.split()[0] == "NAME" and all("here-0" in row for row in rows)
    if max_chars > max(map(len, whole[:-2])):
        assert shown == whole


def test_moves_are_shown_with_the_pause_and_why() -> None:
    assert "MOVES" not in _shown()
    _, row = _section(_shown(moves=[MOVE]), "MOVES")
    assert row.split() == ["here-0", "here-1", "1m", "480", "ms", "REPLICA_LOST"]


def test_services_are_shown_where_the_mesh_is_on_this_machine() -> None:
    assert "SERVICES" not in _shown()
    _, row = _section(_shown(services=[SERVICE]), "SERVICES")
    assert row.split() == ["here-0", "inference", "1", "2", "http://h:3/metrics", "up"]


def test_a_service_that_tokenizes_says_by_which_package_and_why() -> None:
    assert "TOKENIZERS" not in _shown()
    _, row = _section(_shown(tokenizers=[TOKENIZER]), "TOKENIZERS")
    assert row.split(maxsplit=4) == ["here-0", "m", "splintr-rs", "2", TOKENIZER["reason"]]


def test_an_edge_says_what_provisional_text_brought() -> None:
    assert "PROVISIONAL" not in _shown()
    _, row = _section(_shown(provisional=[PROVISIONAL]), "PROVISIONAL TEXT")
    assert row.split() == ["here-0", "m", "20", "30%", "90%", "4.0", "ms"]
    nothing = PROVISIONAL | {"tokens": 0.0, "stayed_tokens": 0.0, "erased_tokens": 0.0}
    _, row = _section(_shown(provisional=[nothing]), "PROVISIONAL TEXT")
    assert row.split() == ["here-0", "m", "20", "30%", "-", "-"]
    assert provisional_text("127.0.0.1", free_tcp_port()) == []


def test_a_process_that_does_not_answer_has_no_tokenizer_to_tell() -> None:
    assert tokenizer_backends("127.0.0.1", free_tcp_port()) == []


def test_a_service_says_how_it_last_ended() -> None:
    at_s = time.mktime((2026, 1, 2, 14, 38, 0, 0, 0, -1))
    down = SERVICE | {"is_up": False, "last_end": asdict(LastEnd(ending(-9), at_s))}
    back = SERVICE | {"restarts": 1, "last_end": asdict(LastEnd(ending(1), at_s, at_s + 60))}
    _, first, second = _section(_shown(services=[down, back]), "SERVICES")
    assert first.endswith("DOWN, is started again, killed (signal 9) 14:38")
    assert second.endswith("up, ended with status 1 14:38, back 14:39, restarts 1")
