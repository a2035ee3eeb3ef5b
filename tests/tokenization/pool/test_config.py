"""How many other processes tokenize."""

from __future__ import annotations

import pytest

from outrider.tokenization.pool.config import automatic_processes


@pytest.mark.parametrize(
    ("cores", "num_processes"), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 2), (6, 2), (64, 2)]
)
def test_processes_take_cores_that_the_edge_leaves(cores: int, num_processes: int) -> None:
    assert automatic_processes(cores, is_fast=False) == num_processes
    assert automatic_processes(cores, is_fast=True) == 0
