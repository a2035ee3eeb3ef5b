"""What a model identity is made of, and when two are the same."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import MalformedFrameError
from outrider.model_identity import (
    MAX_BYTES,
    check_model_identity,
    inexact_identity,
    model_identity,
    same_model,
    short_form,
)

PARTS: dict[str, Any] = {
    "weights_sha256": "ab" * 32,
    "vocabulary_digest": b"v" * 32,
    "engine": "openvino",
    "precision": "f32",
    "exact": True,
    "fingerprint": b"f" * 32,
}


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("weights_sha256", "ac" * 32),
        ("vocabulary_digest", b"w" * 32),
        ("engine", "fake"),
        ("precision", "bf16"),
        ("exact", False),
        ("fingerprint", b"g" * 32),
    ],
)
def test_every_part_counts(part: str, other: object) -> None:
    one = model_identity(**PARTS)
    assert same_model(one, model_identity(**PARTS))
    assert not same_model(one, model_identity(**{**PARTS, part: other}))


def test_parts_do_not_run_into_each_other() -> None:
    shifted = {**PARTS, "engine": "openvinof", "precision": "32"}
    assert not same_model(model_identity(**PARTS), model_identity(**shifted))


def test_an_unknown_one_equals_none() -> None:
    assert not same_model(b"", b"")
    assert not same_model(b"", model_identity(**PARTS))


def test_inexact_kv_goes_by_an_identity_that_no_replica_has() -> None:
    one, other = model_identity(**PARTS), model_identity(**{**PARTS, "precision": "bf16"})
    assert not same_model(inexact_identity(one), one)
    assert not same_model(inexact_identity(one), inexact_identity(other))
    assert len(inexact_identity(one)) <= MAX_BYTES


def test_people_see_eight_digits() -> None:
    assert short_form(bytes.fromhex("0123456789ab")) == "01234567"
    assert short_form(b"") == "unknown"


def test_a_peer_may_name_one_of_64_bytes() -> None:
    assert len(check_model_identity(bytes(MAX_BYTES))) == len(model_identity(**PARTS)) * 2
    with pytest.raises(MalformedFrameError, match="65 bytes"):
        check_model_identity(bytes(MAX_BYTES + 1))
