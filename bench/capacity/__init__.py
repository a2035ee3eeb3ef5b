"""Chats that one core of a region can serve at an equal pace: decoding plainly, drafting with a
draft model on that core, and with edges that draft on cores of their own. In virtual time.

Real are the scheduler with its draft budget and verification, and the edges' chats with their
chains, calibration and control of uploads. Emulated are the models and the link: a call of the
target takes a fixed time and one for each row, and so does a step of the draft model. Calls and
steps of the region follow each other on its core. Every reply is compared with the target's own.

The law that this is held against is proposition 9 of "Speculation at a Distance" (arXiv
2606.25091): a server that drafts gamma tokens at t_d each, then verifies them in t_v, serves
1 + gamma * t_d / t_v times as many clients at the same pace if these draft for themselves.
"""
