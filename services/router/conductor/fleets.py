"""How far replicas are taken up, from their reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from services.router.conductor.conductor import Fleet, Post
from services.router.fleet.load import Load
from services.router.fleet.replica import Replica


def fleets(
    replicas: Iterable[Replica], waiting: Mapping[Post, int], slo_ms: float
) -> dict[Post, Fleet]:
    """The fleets of every region and model.

    `waiting` are the sessions in this router's queue, by where there is to be room for them.
    """
    posts: dict[Post, list[Load]] = {}
    for replica in replicas:
        if replica.takes_sessions and replica.model_name and replica.region:
            loads = posts.setdefault(Post(replica.region, replica.model_name), [])
            loads.append(replica.load or Load())
    return {
        post: Fleet(len(loads), utilization(loads, waiting.get(post, 0), slo_ms))
        for post, loads in posts.items()
    }


def utilization(loads: list[Load], num_waiting: int, slo_ms: float) -> float:
    """Of 1, how far replicas are taken up: by sessions, as a share of their places, or by prompts
    that wait to be computed, as a share of the time a first token may take; the larger counts."""
    num_sessions = sum(load.running_sessions + load.queued_sessions for load in loads)
    num_places = sum(load.max_sessions for load in loads)
    by_sessions = (num_sessions + num_waiting) / num_places if num_places else 0.0
    by_prompts = sum(_backlog_ms(load) for load in loads) / (len(loads) * slo_ms)
    return max(by_sessions, by_prompts)


def _backlog_ms(load: Load) -> float:
    return load.queued_prompt_tokens / load.num_instances * load.row_ms
