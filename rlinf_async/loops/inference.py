"""The inference loop: one per rank, fed by the batcher."""

from __future__ import annotations

from rlinf_async.loops.ports import Policy, RequestPort


async def serve_policy(*, requests: RequestPort, policy: Policy) -> None:
    """Answer batches of action requests until every env shard has hung up."""
    while (batch := await requests.take()) is not None:
        async with requests.answering(batch) as answers:
            answers.extend(await policy.act(batch))
