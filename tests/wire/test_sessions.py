"""A session's priority, end and cost go over the wire as they are, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cost import MAX_AMOUNT_NANOS, Cost
from outrider.errors import MalformedFrameError
from outrider.session_types import FinishReason, Priority, Speculation
from outrider.v1 import common_pb2
from outrider.wire import sessions


@given(st.integers(0, MAX_AMOUNT_NANOS))
def test_round_trip_through_bytes(amount_nanos: int) -> None:
    usage = common_pb2.Usage(prompt_tokens=3)
    sessions.set_cost(usage, Cost(amount_nanos, "USD"))
    arrived = common_pb2.Usage.FromString(usage.SerializeToString())
    assert sessions.cost_of(arrived) == Cost(amount_nanos, "USD"), "nothing is not unknown"
    assert arrived.prompt_tokens == 3


def test_no_cost_takes_the_place_of_what_was_said() -> None:
    usage = common_pb2.Usage(cost=common_pb2.Cost(amount_nanos=5, currency="USD"))
    sessions.set_cost(usage, None)
    assert sessions.cost_of(usage) is None
    assert usage == common_pb2.Usage()


@pytest.mark.parametrize(("amount", "currency"), [(2**63, "USD"), (1, ""), (1, "\x1b[2J")])
def test_a_peer_that_makes_it_up_is_refused(amount: int, currency: str) -> None:
    usage = common_pb2.Usage(cost=common_pb2.Cost(amount_nanos=amount, currency=currency))
    with pytest.raises(MalformedFrameError, match="costs"):
        sessions.cost_of(usage)


def test_each_value_has_its_number_on_the_wire() -> None:
    for priority in (None, *Priority):
        assert sessions.priority_from_proto(sessions.priority_to_proto(priority)) is priority
    for speculation in Speculation:
        number = sessions.speculation_to_proto(speculation)
        assert sessions.speculation_from_proto(number) is speculation
        assert common_pb2.Speculation.Name(number) == f"SPECULATION_{speculation.name}"


def test_each_end_has_its_number_on_the_wire() -> None:
    for reason in FinishReason:
        number = sessions.finish_reason_to_proto(reason)
        assert sessions.finish_reason_from_proto(number) is reason
        assert common_pb2.FinishReason.Name(number) == f"FINISH_REASON_{reason.name}"
