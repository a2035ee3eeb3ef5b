"""What bench.kv.prediction measures with: rotation, regression and the ideal coder."""

from __future__ import annotations

import numpy as np

from bench.kv.prediction import ErrorCoder, fitted, rotated, to_bf16


def test_rotated_keys_turn_back() -> None:
    keys = np.random.default_rng(1).normal(size=(2, 9, 16)).astype(np.float32)
    turned = rotated(keys, 8, 10_000.0)
    assert not np.allclose(turned, keys)
    assert np.allclose(rotated(turned, 8, 10_000.0, back=True), keys, atol=1e-5)


def test_a_linear_relation_is_found() -> None:
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(4000, 3)).astype(np.float32)
    targets = inputs @ rng.normal(size=(3, 2)).astype(np.float32) + 5
    weights = fitted(inputs, targets)
    assert np.allclose(inputs @ weights[:-1] + weights[-1], targets, atol=0.2)


def test_a_better_prediction_costs_fewer_bits() -> None:
    rng = np.random.default_rng(3)
    numbers = to_bf16(rng.normal(size=(2000, 4)).astype(np.float32))
    near = numbers + rng.normal(scale=0.01, size=numbers.shape).astype(np.float32)
    far = np.zeros_like(numbers)
    bits = [ErrorCoder(numbers - guess).bits(numbers, guess, 7) for guess in (near, far)]
    assert 0 < bits[0] < bits[1] - 3 < 16
