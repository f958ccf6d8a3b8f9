"""A host without a framework: the reference for the others, and the first example."""

from rlinf_async.hosts.local.envs import PointReach, point_reach
from rlinf_async.hosts.local.host import LocalHost, LocalResult
from rlinf_async.hosts.local.settings import LocalSettings

__all__ = ["LocalHost", "LocalResult", "LocalSettings", "PointReach", "point_reach"]
