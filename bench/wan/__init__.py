"""Ways to speculate over a wide-area network, side by side.

One machine, one model, one set of prompts and seeds: those of `bench/data/test`, on which nothing
was chosen. A relay in user space (`bench.relay`) holds every packet back by half a round
trip each way, on two links: the client's last mile (10 ms), which every scheme pays, and the long
way to the region (the RTT of the tables). Where client and gateway are far apart, their one link
has both. Chats share no cache (`trust = "chat"`), so no scheme gains by what another one asked
before it.

Every scheme has the same two cores. Replica and router run on the one, with one thread; edges and
gateways with their drafters on the other, beside relay and clients. So (c) has a second core for
its drafter as (f) has. (a) and (b) have no use for a drafter's core; (a2) and (b2) give it to the
model, with a second thread. The schemes:

(a) plain streaming: client =last mile + RTT= gateway - region. Our edge runs at the region as a
    mere gateway, speculation off. The baseline.
(b) the region drafts for itself: as (a), with the region's own suffix drafts.
(a2), (b2) as (a) and (b), with a replica that has both cores and a thread on each.
(c) the region runs the drafter: as (a), and the gateway drafts with what an edge drafts with.
    Nothing provisional is shown.
(f) Outrider: client =last mile= edge =RTT= region.
(g) as (f), but the edge's drafts are never sent up. It asks of the region what (b) does. So (g)
    against (b) is what a drafter costs that computes on the same machine as the region, on the same
    memory and caches; and (f) against (g) is what sending drafts brings and costs.

The first word is the first run of letters and digits with all that stands before it
(`outrider.word_boundaries`), and is on screen when its last letter is
(`outrider.client.first_word`). Of Outrider three times are measured: when the first word that was
ever completed on screen was, right or wrong (`visible_word_ms`); since when the reply's own first
word has stood there without being taken back, provisional or committed (`staying_word_ms`); when it
was committed (`committed_word_ms`). In plain streaming all three are one.

Pace is (n - 1) / (t_last - t_first) over committed tokens as the client sees them, divided by (a)'s
on the same prompt and seed in the same round, sessions and RTT; beside it stands the whole reply's
time, from the ask to the last token. Of chats alone the schemes take turns, prompt by prompt.
Capacity is committed tokens per second of the region's CPU time: of replica and router, prompts
included, and where the gateway drafts at the region, of its drafter. Every reply's ids are compared
with the reference's, and the run fails if one differs.
"""
