"""Metrics of several processes in one exposition."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from outrider.telemetry import names
from outrider.telemetry.metrics import Metrics
from outrider.workers.gathering import gathered
from tests.promtool import complaints


async def test_each_family_stands_there_once_with_every_process_in_it() -> None:
    texts: dict[str, str] = {}
    for worker in ("0", "1"):
        metrics = Metrics("edge")
        metrics.record_ttft(50.0 + int(worker), "small")
        metrics.counter(names.DRAFTED_TOKENS).add(7)
        texts[worker] = generate_latest(metrics.registry).decode()
        metrics.close()
    page = gathered(texts).decode()
    assert "error" not in await complaints("check", "metrics", page=page)
    lines = page.splitlines()
    kinds = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    for worker, text in texts.items():
        for family in text_string_to_metric_families(text):
            found = [it for it in text_string_to_metric_families(page) if it.name == family.name]
            assert len(found) == 1 and found[0].type == family.type
            own = {(s.name, tuple(sorted(s.labels.items())), s.value) for s in family.samples}
            assert own == {
                (
                    s.name,
                    tuple(sorted((k, v) for k, v in s.labels.items() if k != "worker")),
                    s.value,
                )
                for s in found[0].samples
                if s.labels["worker"] == worker
            }


def test_a_label_that_a_sample_has_is_kept() -> None:
    text = '# TYPE up gauge\nup{worker="3"} 1.0\n'
    assert 'up{worker="3"} 1.0' in gathered({"parent": text}).decode()
