"""What tests need beside `lab.virtual.clock`."""

import asyncio

from rlinf_async.lab.virtual.clock import run

__all__ = ["now", "run", "settle"]


def now():
    return asyncio.get_running_loop().time()


async def settle():
    """Let everybody run who can, without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)
