"""Every attack on the HTTP door, and how many requests it sends: ten thousand in all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from bench.hostile.http import bodies, credentials, http1_attacks, http2_attacks, http3_attacks
from bench.hostile.http.sending import Ration
from bench.hostile.target import Findings, Target

HttpRun: TypeAlias = Callable[[Target, Ration, Findings], Awaitable[None]]
NUM_REQUESTS: Final = 10_000

HTTP_ATTACKS: Final[tuple[tuple[str, str, HttpRun, int], ...]] = (
    ("http1", "contradicting_lengths", http1_attacks.contradicting_lengths, 500),
    ("http1", "disguised_encodings", http1_attacks.disguised_encodings, 500),
    ("http1", "damaged_chunks", http1_attacks.damaged_chunks, 300),
    ("http1", "damaged_heads", http1_attacks.damaged_heads, 484),
    ("http1", "head_floods", http1_attacks.head_floods, 300),
    ("http1", "slow_heads", http1_attacks.slow_heads, 200),
    ("http1", "slow_http_bodies", http1_attacks.slow_bodies, 200),
    ("http1", "pipelined_requests", http1_attacks.pipelined_requests, 500),
    ("http1", "vanishing_requests", http1_attacks.vanishing_requests, 100),
    ("http1", "unread_replies", http1_attacks.unread_replies, 20),
    ("http2", "h2_rapid_resets", http2_attacks.rapid_resets, 1000),
    ("http2", "h2_ping_floods", http2_attacks.ping_floods, 20),
    ("http2", "h2_settings_floods", http2_attacks.settings_floods, 20),
    ("http2", "h2_small_frames", http2_attacks.small_frames, 20),
    ("http2", "h2_continuation_floods", http2_attacks.continuation_floods, 40),
    ("http2", "h2_hpack_bombs", http2_attacks.hpack_bombs, 200),
    ("http2", "h2_damaged_frames", http2_attacks.damaged_frames, 400),
    ("http2", "h2_ambiguous_fields", http2_attacks.ambiguous_fields, 300),
    ("http2", "h2_closed_windows", http2_attacks.closed_windows, 200),
    ("http2", "h2_slow_streams", http2_attacks.slow_streams, 200),
    ("http3", "h3_rapid_resets", http3_attacks.rapid_resets, 800),
    ("http3", "h3_qpack_garbage", http3_attacks.qpack_garbage, 400),
    ("http3", "h3_blocked_streams", http3_attacks.blocked_streams, 200),
    ("http3", "h3_damaged_frames", http3_attacks.damaged_frames, 300),
    ("http3", "h3_forbidden_frames", http3_attacks.forbidden_frames, 100),
    ("http3", "h3_control_streams", http3_attacks.control_streams, 120),
    ("http3", "h3_header_floods", http3_attacks.header_floods, 200),
    ("http3", "h3_ambiguous_fields", http3_attacks.ambiguous_fields, 300),
    ("http3", "h3_slow_bodies", http3_attacks.slow_bodies, 160),
    ("bodies", "deep_json", bodies.deep_json, 150),
    ("bodies", "absurd_numbers", bodies.absurd_numbers, 250),
    ("bodies", "damaged_json", bodies.damaged_json, 200),
    ("bodies", "giant_bodies", bodies.giant_bodies, 68),
    ("bodies", "absurd_fields", bodies.absurd_fields, 300),
    ("bodies", "schema_bombs", bodies.schema_bombs, 90),
    ("bodies", "grammar_bombs", bodies.grammar_bombs, 70),
    ("bodies", "tool_floods", bodies.tool_floods, 48),
    ("credentials", "wrong_http_keys", credentials.wrong_keys, 440),
    ("credentials", "unknown_routes", credentials.unknown_routes, 200),
    ("credentials", "odd_requests", credentials.odd_requests, 100),
)
"""Family, name, function, requests."""
