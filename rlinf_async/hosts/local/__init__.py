"""A host without a framework: the reference for the others, and the first example."""

from rlinf_async.hosts.local.envs import PointReach, point_reach
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.trainer import LocalResult, LocalTrainer

__all__ = ["LocalResult", "LocalSettings", "LocalTrainer", "PointReach", "point_reach"]
