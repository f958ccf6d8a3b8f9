"""The inference loops: one of each per rank, fed by the batcher and by the learner."""

from __future__ import annotations

from rlinf_async.loops.ports import LoadablePolicy, Policy, RequestPort, WeightPort


async def serve_policy(*, requests: RequestPort, policy: Policy) -> None:
    """Answer batches of action requests until every env shard has hung up."""
    while (batch := await requests.take()) is not None:
        async with requests.answering(batch) as answers:
            answers.extend(await policy.act(batch))


async def refresh_weights(*, weights: WeightPort, policy: LoadablePolicy) -> None:
    """Give the policy the newest weights, again and again, until there will be no more."""
    while (offered := await weights.next()) is not None:
        version, data = offered
        await policy.load(version, data)
        await weights.applied(version)
