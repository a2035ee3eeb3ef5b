"""Schemes of speculation over a wide-area network, side by side.

One machine, one model, one set of prompts and seeds: those of `bench/data/held_out`, on which no
threshold was chosen. A relay in user space (`bench.relay`) holds every packet back by half a round
trip each way, on two links: the client's last mile (`--client-rtt-ms`, 10 by default), which every
scheme pays, and the long way to the region (the RTT of the tables). Where client and gateway are
far apart, their one link has both. Jitter comes on the long way, losses on the clients' links.
Chats share no cache (`trust = "chat"`), so no scheme gains by what another one asked before it.

Every scheme has the same two cores. Replica, router and waiting verifier run on the one, with one
thread; edges and gateways with their drafters on the other, beside relay and clients. So (c) has a
second core for its drafter as (f) has. (a) and (b) have no use for a drafter's core; (a2) and (b2)
give it to the model, with a second thread. The schemes:

(a) plain streaming: client =last mile + RTT= gateway - region. Our edge runs at the region as a
    mere gateway, speculation off. The baseline.
(b) the region drafts for itself: as (a), with the region's own suffix drafts.
(a2), (b2) as (a) and (b), with a replica that has both cores and a thread on each.
(c) the region runs the drafter: as (a), and the gateway drafts with what an edge drafts with.
    Nothing provisional is shown.
(d) stop-and-wait edge drafting, k = 4, (e) an asynchronous chain that waits only when a draft was
    wrong: client and edge are one process, =RTT= a region that verifies what it is sent
    (`waiting_verifier`). They draft with what (c) and (f) draft with. The last mile is added to
    their times.
(f) Outrider: client =last mile= edge =RTT= region.
(g) as (f), but the edge's drafts are never sent up. It asks of the region what (b) does. So (g)
    against (b) is what a drafter costs that computes on the same machine as the region, on the same
    memory and caches; and (f) against (g) is what sending drafts brings and costs.

The first word is the first run of letters and digits with all that stands before it
(`outrider.word_boundaries`), and is on screen when its last letter is
(`outrider.client.first_word`). Of Outrider three times are measured: when the first word that was
ever completed on screen was, right or wrong (`visible_word_ms`); since when the reply's own first
word has stood there without being taken back, provisional or committed (`staying_word_ms`); when it
was committed (`committed_word_ms`). In plain streaming all three are one. `first_word_early` is the
share of chats whose first word was shown before its commit, `first_word_right` how many of those
words were the reply's, `taken_back` the share of provisional characters that were retracted,
`ahead_ms` for how long characters stood on screen before their commit. Visible and committed TTFT
are the times to the first text on screen and to the first committed token.

Pace is (n - 1) / (t_last - t_first) over committed tokens as the client sees them, divided by (a)'s
on the same prompt and seed in the same round, sessions and RTT; of chats alone the schemes take
turns, prompt by prompt. Capacity is committed tokens per second of CPU time of the region
(`analysis`). Every reply's ids are compared with the reference's, and the run fails if one differs.
"""
