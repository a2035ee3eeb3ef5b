"""What every role says at /metrics, and the rules for earlier names, before Prometheus's judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from outrider import __version__
from outrider.telemetry.families import Family
from tests.edge.integration.region import small_vocabulary
from tests.mesh import running_mesh
from tests.promtool import complaints
from tests.telemetry.test_names import WHOLE, talk, talk_to_the_router, type_ahead

_RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "short-names.yml"
_ROLES = {"edge", "router", "tokenizer", "inference"}
_RULE_TEST = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: outrider_ttft_seconds_sum
        values: 0.25
      - series: outrider_ttft_seconds_count
        values: 2
      - series: 'outrider_ttft_seconds_bucket{{le="0.1"}}'
        values: 0+0x10
      - series: 'outrider_ttft_seconds_bucket{{le="0.2"}}'
        values: 0+10x10
      - series: 'outrider_ttft_seconds_bucket{{le="+Inf"}}'
        values: 0+10x10
      - series: outrider_batch_utilization_ratio
        values: 0.5
      - series: outrider_draft_rejection_ratio
        values: 0.25
      - series: 'outrider_kv_transferred_bytes_total{{direction="load"}}'
        values: 100
      - series: 'outrider_kv_transferred_bytes_total{{direction="save"}}'
        values: 20
    promql_expr_test:
      - {{expr: ttft_ms_sum, eval_time: 0m, exp_samples: [{{labels: ttft_ms_sum, value: 250}}]}}
      - {{expr: ttft_ms_count, eval_time: 0m, exp_samples: [{{labels: ttft_ms_count, value: 2}}]}}
      - expr: 'round(ttft_ms{{quantile="0.5"}})'
        eval_time: 10m
        exp_samples: [{{labels: '{{quantile="0.5"}}', value: 150}}]
      - expr: batch_utilization
        eval_time: 0m
        exp_samples: [{{labels: batch_utilization, value: 0.5}}]
      - expr: rejection_rate
        eval_time: 0m
        exp_samples: [{{labels: rejection_rate, value: 0.25}}]
      - expr: kv_sync_bytes
        eval_time: 0m
        exp_samples: [{{labels: kv_sync_bytes, value: 120}}]
"""


@pytest.fixture
async def pages(tmp_path: Path) -> Mapping[str, str]:
    """By role, after chats, and a prompt that was computed while it was typed."""
    async with running_mesh(small_vocabulary(), tmp_path, **WHOLE) as mesh:
        async with mesh.client() as client:
            await type_ahead(mesh, client)
            await talk(client)
        await talk_to_the_router(mesh)
        return await mesh.pages()


async def test_promtool_has_nothing_to_say_of_any_role(pages: Mapping[str, str]) -> None:
    assert pages.keys() == _ROLES
    for role, page in pages.items():
        assert page.count("# TYPE outrider_") > 10, role
        assert await complaints("check", "metrics", page=page) == "", role


async def test_every_family_has_its_help_and_prefix_and_each_role_says_what_it_is(
    pages: Mapping[str, str],
) -> None:
    """What promtool does not ask for: our prefix, HELP that is not empty, seconds for times."""
    for role, page in pages.items():
        lines = page.splitlines()
        typed = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
        helps = [line.split() for line in lines if line.startswith("# HELP ")]
        helped = {name for _, _, name, *text in helps if text}
        assert set(typed) == helped, role
        strangers = [name for name in typed if not name.startswith(("outrider_", "gen_ai_"))]
        assert strangers in ([], ["target_info"]), role
        assert not [name for name in typed if "_ms" in name], role
        (build,) = [line for line in lines if line.startswith("outrider_build_info{")]
        assert f'service="{role}"' in build and f'version="{__version__}"' in build


async def test_the_judge_judges() -> None:
    said = await complaints("check", "metrics", page="# TYPE wait_ms gauge\nwait_ms 1\n")
    assert "no help text" in said


@pytest.mark.parametrize("name", ["ttft_ms", "outrider", "outrider_Wait", "outrider_chats_total"])
def test_a_name_against_the_conventions_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a family"):
        Family(name, "Something.")
    with pytest.raises(ValueError, match="says nothing"):
        Family("outrider_something", "")


async def test_short_names_are_what_the_rules_say(tmp_path: Path) -> None:
    assert await complaints("check", "rules", str(_RULES)) == ""
    tests = tmp_path / "test.yml"
    tests.write_text(_RULE_TEST.format(rules=_RULES), "utf-8")
    assert await complaints("test", "rules", str(tests)) == ""
