"""A mesh under attack, in short: `python -m bench.hostile` has all of it, and times. Attacks that
concern QUIC alone are in tests/edge/integration/test_hostile.py."""

from __future__ import annotations

import pytest

from bench.harness.local_mesh import local_mesh
from bench.hostile.__main__ import SETTINGS
from bench.hostile.catalog import attack_of
from bench.hostile.http.door import HTTP_SETTINGS, door_target
from bench.hostile.measuring import misses_of

ATTACKS = (
    *("one_honest_client", "four_honest_clients"),
    *("malformed_streams", "malformed_messages", "absurd_requests", "one_byte_streams"),
    *("high_priority", "others_drafts", "others_cached_tokens", "stolen_resume_token"),
    *("stolen_idempotency_key", "guessed_keys", "calls_without_certificate"),
    *("calls_of_another_role", "noise_at_grpc"),
    *("contradicting_lengths", "h2_rapid_resets", "h2_ambiguous_fields", "h3_qpack_garbage"),
    *("damaged_json", "schema_bombs", "wrong_http_keys"),
)
HTTP_SHARE = 0.05


@pytest.mark.e2e
@pytest.mark.timeout(300)
async def test_no_attack_breaks_anything_or_leaves_anything_behind() -> None:
    # Without the draft model, which would load meanwhile.
    settings = (*SETTINGS, *HTTP_SETTINGS, "edge.drafter.model=none")
    with local_mesh(engine="fake", regions="us-east", settings=settings, http=True) as mesh:
        attacks = [attack_of(name) for name in ATTACKS]
        assert await misses_of(mesh, door_target(mesh, HTTP_SHARE), attacks, 0.5) == []
