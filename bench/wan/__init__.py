"""Schemes of speculation over a wide-area network, side by side.

One machine, one model, one set of prompts and seeds. Region and edge have different cores. A relay
in user space (`relay`) holds every packet of the long link back by half the RTT each way, by
jitter, and loses datagrams; the other link has no delay. Chats share no cache (`isolate_chats`),
so no scheme gains by what another one asked before it. The schemes:

(a) plain streaming: client ==RTT== gateway - region. Our edge stands at the region as a mere
    gateway, speculation off. The baseline.
(b) the region drafts for itself: as (a), with the region's own suffix drafts.
(c) the region runs the drafter: as (a), and the gateway drafts with what an edge drafts with, on
    the region's cores. Nothing provisional is shown.
(d) stop-and-wait edge drafting, k = 4, (e) an asynchronous chain that waits on a miss: client and
    edge are one, ==RTT== a region that verifies what it is sent (`waiting`). They draft with what
    (c) and (f) draft with.
(f) Outrider: client - edge ==RTT== region.
(g) as (f), but the edge's drafts never go up. Of the region it wants what (b) does, so what it has
    less than (b) is what a drafter costs that computes beside the region, on the same memory and
    caches, as it does on one machine; what (f) has less than (g), what sending drafts costs.

Committed TTFT is the time from the ask to the first final token; visible TTFT to the first text on
screen, provisional or final; stable TTFT the time since which the reply's first character has
stood there for good. Pace is (n - 1) / (t_last - t_first) over final tokens as the client sees
them, compared with (a)'s on the same prompt and seed in the same round, sessions and RTT; of chats
alone the schemes take turns, prompt by prompt. Erasure is code points taken back over those of the
final text, shown early the share of the final text that stood on screen before it was final.
Capacity is final tokens per second of CPU time of the region (`report.capacity`).
"""
