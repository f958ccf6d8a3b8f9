"""The `async` block of a run."""

from rlinf_async.config.advanced import MAX_COMPARED_BYTES, AdvancedConfig
from rlinf_async.config.block import LEVEL_NAMES, MODE_LEVELS, AsyncConfig, Mode, preset_levels, words
from rlinf_async.config.levels import RolloutConfig, StreamerConfig, SurviveConfig, TrainConfig, Weighting

__all__ = [
    "LEVEL_NAMES",
    "MAX_COMPARED_BYTES",
    "MODE_LEVELS",
    "AdvancedConfig",
    "AsyncConfig",
    "Mode",
    "RolloutConfig",
    "StreamerConfig",
    "SurviveConfig",
    "TrainConfig",
    "Weighting",
    "preset_levels",
    "words",
]
