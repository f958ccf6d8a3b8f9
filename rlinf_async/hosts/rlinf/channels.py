"""The request channel and the coordinator, as processes that RLinf starts like its channels."""

from __future__ import annotations

from rlinf_async.hosts.rlinf.borrowed import ChannelWorker, Worker
from rlinf_async.hosts.rlinf.platform import provide_cpu_platform
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel


class ChannelProcess(ChannelWorker):
    """A channel worker of RLinf with other methods instead of RLinf's queue.

    It builds neither models nor environments, so it skips RLinf's extension modules, which would import both
    for seconds.
    """

    def __init__(self) -> None:
        super().__init__(maxsize=0)

    def _load_user_extensions(self) -> None:
        # RLinf calls this while it constructs the worker, after it has set the platform to None.
        provide_cpu_platform(Worker)


class RequestChannelWorker(RequestChannel, ChannelProcess):
    """The process that passes requests of env shards to inference ranks."""

    def __init__(self, settings: RunSettings) -> None:
        # Each base is called by name: they take different arguments, and `RequestChannel` calls no `super()`.
        ChannelProcess.__init__(self)
        RequestChannel.__init__(self, settings)


class CoordinatorWorker(Coordinator, ChannelProcess):
    """The process that paces a run."""

    def __init__(self, settings: RunSettings, version: int) -> None:
        ChannelProcess.__init__(self)
        Coordinator.__init__(self, settings, version)
