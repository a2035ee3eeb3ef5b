"""The consent to inexact text is its tenant's, and goes with the session wherever it goes."""

from __future__ import annotations

from outrider.codec.block_hashes import block_hashes, inexact_salt, root_hash
from outrider.codec.tokens import TokenCodec
from outrider.errors import UnavailableError
from outrider.v1 import common_pb2, inference_pb2
from services.router.admission.tenants import TenantPolicy
from services.router.fleet.replica import ServedModel
from tests.router.relay.mesh import DIGEST, IDENTITY, Mesh, accepted, failed, opening
from tests.router.relay.test_kv_holder import BLOCK, PROMPT, SALT, packed

BOLD = TenantPolicy("bold", allow_inexact=True)


def mesh_of(*names: str) -> Mesh:
    mesh = Mesh(names=names, tenants=(BOLD,))
    model = ServedModel("m", DIGEST, 2048, (1, 2), block_tokens=BLOCK, identity=IDENTITY)
    for name in names:
        mesh.registry.connected(name, model, mesh.clock())
    mesh.fleet_view.refresh(mesh.registry, mesh.clock())
    return mesh


def asked(number: int, tenant: str, *, allows_inexact: bool = False) -> inference_pb2.SessionUp:
    tail = common_pb2.TokenBlock(
        codec=common_pb2.TokenCodec.ValueType(TokenCodec.VARINT),
        count=len(PROMPT),
        payload=packed(PROMPT),
    )
    ids = inference_pb2.PromptDelta(tail=tail)
    return opening(
        number, ids=ids, cache_salt=SALT, tenant=tenant, allows_inexact=allows_inexact,
        request_id=f"r{number}",
    )  # fmt: skip


async def test_the_tenant_s_policy_decides_and_nothing_that_an_edge_says() -> None:
    mesh = mesh_of("near")
    edge = mesh.edge()
    for number, tenant in ((1, "bold"), (2, "plain")):
        for offset, said in ((0, False), (10, True)):
            mesh.send(edge, asked(number + offset, tenant, allows_inexact=said))
            (sent,) = await mesh.at_replica("near")
            assert sent.open.allows_inexact is (tenant == "bold")
            assert sent.open.cache_salt == SALT, "the group stays what it is"
    mesh.metrics.close()


async def test_inexact_kv_is_found_by_its_own_name_and_the_consent_survives_a_failover() -> None:
    mesh = mesh_of("near", "far")
    edge = mesh.edge()
    for name, salt in (("far", SALT), ("near", inexact_salt(SALT))):
        hashes = list(block_hashes(PROMPT, BLOCK, salt))
        mesh.index.store(mesh.placement.owner(name), root_hash(salt), hashes)
    mesh.send(edge, asked(1, "plain"))
    (plain,) = await mesh.at_replica("near")
    assert plain.open.kv_holder.replica == "far", "exact KV of the group is there alone"
    mesh.send(edge, asked(2, "bold"))
    (bold,) = await mesh.at_replica("near")
    assert not bold.open.HasField("kv_holder"), "it is placed where its KV is"
    mesh.reply("near", accepted(bold.session))
    mesh.reply("near", failed(bold.session, UnavailableError("this replica is drained")))
    (moved,) = await mesh.at_replica("far")
    assert moved.open.allows_inexact and moved.open.cache_salt == SALT
    assert moved.open.kv_holder.replica == "near"
    mesh.metrics.close()
