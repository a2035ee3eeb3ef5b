"""What sessions cost, told while they are in and charged when they leave."""

from __future__ import annotations

from outrider.cost import Cost
from services.router.admission.admission import Admission
from services.router.admission.policy import AdmissionPolicy
from services.router.admission.pricing import Price, PriceTable
from services.router.admission.tenants import TenantPolicy
from tests.router.admission.fakes import REQUEST, FakeFleetView, Region, asking


def test_what_was_used_is_charged_by_tenant_and_model() -> None:
    prices = PriceTable([Price(1.0, 10.0), Price(2.0, 20.0, tenant="acme")], "USD")
    admission = Admission(AdmissionPolicy(), [TenantPolicy("acme")], prices=prices)
    for number, tenant in enumerate(("acme", "other", "another")):
        assert admission.open(*asking(number, tenant=tenant), FakeFleetView(), 0.0)
        admission.close(number, 50, 1.0)
    full = FakeFleetView({"us": Region(is_full=True)})
    assert admission.open(*asking(9, tenant="acme"), full, 2.0) is None
    admission.close(9, 0, 3.0)  # it never had a replica
    prompt = REQUEST.prompt_tokens
    assert admission.stats.take().costs_nanos == {
        ("acme", "m"): 1000 * (2 * prompt + 20 * 50),
        ("*", "m"): 1000 * 2 * (prompt + 10 * 50),
    }
    assert not admission.stats.take().costs_nanos


def test_a_run_that_brings_tokens_costs_as_if_it_had_computed_them() -> None:
    admission = Admission(AdmissionPolicy(), prices=PriceTable([Price(1.0, 10.0)], "USD"))
    for number, chat in enumerate((b"chat", b"chat", b"other")):
        resumed = asking(number, prompt_tokens=30, num_committed=4 * number, chat_digest=chat)
        admission.open(*resumed, FakeFleetView(), 0.0)
        assert admission.cost(number, 0) == Cost(1000 * (30 + 10 * 4 * number), "USD")
        assert admission.cost(number, 20) == Cost(1000 * (30 + 10 * 20), "USD")
    admission.close(0, 6, 1.0)
    assert admission.stats.take().costs_nanos["*", "m"] == 1000 * (30 + 10 * 6)
    admission.close(1, 20, 2.0)
    assert admission.stats.take().costs_nanos["*", "m"] == 1000 * 10 * 14, "the rest of it"
    admission.close(2, 20, 3.0)
    assert admission.stats.take().costs_nanos["*", "m"] == 1000 * (30 + 10 * 20)


def test_what_no_replica_took_costs_nothing_and_is_given_back() -> None:
    prices = PriceTable([Price(1.0, 10.0)], "USD")
    tenants = [TenantPolicy("*", tokens_per_minute=100)]
    admission = Admission(AdmissionPolicy(), tenants, prices=prices)
    for number in range(2):  # the second has room for its 100 tokens
        assert admission.open(*asking(number), FakeFleetView(), 0.0)
        admission.close(number, 0, 0.0, was_taken=False)
    stats = admission.stats.take()
    assert not stats.costs_nanos
    assert not any(stats.tokens.values())
