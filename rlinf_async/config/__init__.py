"""The `async` block of a run."""

from rlinf_async.config.advanced import COMPARED_BYTES, AdvancedConfig
from rlinf_async.config.block import LEVELS, MODES, AsyncConfig, Mode, preset_levels, words
from rlinf_async.config.rollout import RolloutConfig
from rlinf_async.config.streamer import StreamerConfig
from rlinf_async.config.survive import SurviveConfig
from rlinf_async.config.train import TrainConfig

__all__ = [
    "COMPARED_BYTES",
    "LEVELS",
    "MODES",
    "AdvancedConfig",
    "AsyncConfig",
    "Mode",
    "RolloutConfig",
    "StreamerConfig",
    "SurviveConfig",
    "TrainConfig",
    "preset_levels",
    "words",
]
