"""A process that passes on what others hand to it."""

from __future__ import annotations

from rlinf.scheduler import Worker
from rlinf.scheduler.channel.channel_worker import ChannelWorker

from rlinf_async.hosts.rlinf.observed import Observed
from rlinf_async.hosts.rlinf.platform import provide_cpu_platform


class ChannelProcess(Observed, ChannelWorker):
    """A channel worker of RLinf with calls of its own in place of RLinf's queue.

    It builds neither models nor environments. RLinf would import both, seconds of work, for the extension
    modules that register some.
    """

    def __init__(self) -> None:
        super().__init__(maxsize=0)

    def _load_user_extensions(self) -> None:
        provide_cpu_platform(Worker)
