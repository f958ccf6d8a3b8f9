"""The inference loops: one of each per rank, fed by the batcher and by the learner."""

from __future__ import annotations

from rlinf_async.loops.ports import LoadablePolicy, Policy, RequestPort, WeightPort
from rlinf_async.observe.spans import UNRECORDED, SpanLog


async def serve_policy(*, requests: RequestPort, policy: Policy, spans: SpanLog = UNRECORDED) -> None:
    """Answer batches of requests until no shard will ask any more.

    Leaves the spans `idle`, a wait for requests, and `forward`, which names the requests for actions that are
    answered by `shards` and `numbers`, or `score`.
    """
    while True:
        with spans.span("idle"):
            batch = await requests.take()
        if batch is None:
            return
        size = sum(pending.size for pending in batch)
        if batch[0].request.mode == "score":
            span = spans.span("score", size=size)
        else:
            shards = [pending.shard for pending in batch]
            numbers = [pending.request.number for pending in batch]
            span = spans.span("forward", shards=shards, numbers=numbers, size=size)
        async with requests.answering(batch) as answers:
            with span:
                answers.extend(await policy.act(batch))


async def refresh_weights(
    *, weights: WeightPort, policy: LoadablePolicy, spans: SpanLog = UNRECORDED
) -> None:
    """Give the policy the newest weights, again and again, until there will be no more; see `load_next`."""
    while await load_next(weights=weights, policy=policy, spans=spans):
        pass


async def load_next(*, weights: WeightPort, policy: LoadablePolicy, spans: SpanLog = UNRECORDED) -> bool:
    """Wait for newer weights and give them to the policy; False if there will be no more.

    Leaves the span `load`: from the moment that new weights are there until the policy acts by them.
    """
    offered = await weights.next()
    if offered is None:
        return False
    version, data = offered
    with spans.span("load", version=version):
        await policy.load(version, data)
    await weights.applied(version)
    return True
