"""The inference loops: one of each per rank, fed by the batcher and by the learner."""

from __future__ import annotations

from rlinf_async.core.spans import UNRECORDED, SpanLog
from rlinf_async.loops.ports import LoadablePolicy, Policy, RequestPort, WeightPort


async def serve_policy(*, requests: RequestPort, policy: Policy, spans: SpanLog = UNRECORDED) -> None:
    """Answer batches of action requests until every env shard has hung up.

    Leaves the spans `idle`, a wait for requests, and `forward`, which names the shards that are answered.
    """
    while True:
        with spans.span("idle"):
            batch = await requests.take()
        if batch is None:
            return
        shards, size = [pending.shard for pending in batch], sum(pending.size for pending in batch)
        async with requests.answering(batch) as answers:
            with spans.span("forward", shards=shards, size=size):
                answers.extend(await policy.act(batch))


async def refresh_weights(
    *, weights: WeightPort, policy: LoadablePolicy, spans: SpanLog = UNRECORDED
) -> None:
    """Give the policy the newest weights, again and again, until there will be no more.

    Leaves the span `load`: from the moment that new weights are there until the policy acts by them.
    """
    while (offered := await weights.next()) is not None:
        version, data = offered
        with spans.span("load", version=version):
            await policy.load(version, data)
        await weights.applied(version)
