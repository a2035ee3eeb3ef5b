"""What a chat costs goes over the wire as it is, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cost import MAX_AMOUNT_NANOS, Cost
from outrider.errors import MalformedFrameError
from outrider.v1 import common_pb2
from outrider.wire import cost as cost_wire


@given(st.integers(0, MAX_AMOUNT_NANOS))
def test_round_trip_through_bytes(amount_nanos: int) -> None:
    usage = common_pb2.Usage(prompt_tokens=3)
    cost_wire.put(usage, Cost(amount_nanos, "USD"))
    arrived = common_pb2.Usage.FromString(usage.SerializeToString())
    assert cost_wire.from_proto(arrived) == Cost(amount_nanos, "USD"), "nothing is not unknown"
    assert arrived.prompt_tokens == 3


def test_no_cost_takes_the_place_of_what_was_said() -> None:
    usage = common_pb2.Usage(cost=common_pb2.Cost(amount_nanos=5, currency="USD"))
    cost_wire.put(usage, None)
    assert cost_wire.from_proto(usage) is None
    assert usage == common_pb2.Usage()


@pytest.mark.parametrize(("amount", "currency"), [(2**63, "USD"), (1, ""), (1, "\x1b[2J")])
def test_a_peer_that_makes_it_up_is_refused(amount: int, currency: str) -> None:
    usage = common_pb2.Usage(cost=common_pb2.Cost(amount_nanos=amount, currency=currency))
    with pytest.raises(MalformedFrameError, match="costs"):
        cost_wire.from_proto(usage)
