"""The `async` block of a run."""

from rlinf_async.config.block import (
    BLOCK_KEY,
    FLAGS_OF_BLOCK,
    LEVEL_NAMES,
    MODE_LEVELS,
    SKIP_KINDS,
    SKIPPING_MODES,
    AsyncConfig,
    Mode,
    preset_levels,
    with_flags,
    words,
)
from rlinf_async.config.sections import (
    MAX_COMPARED_BYTES,
    AdvancedConfig,
    RolloutConfig,
    SkipConfig,
    StreamerConfig,
    SurviveConfig,
    TrainConfig,
    Weighting,
)

__all__ = [
    "BLOCK_KEY",
    "FLAGS_OF_BLOCK",
    "LEVEL_NAMES",
    "MAX_COMPARED_BYTES",
    "MODE_LEVELS",
    "SKIPPING_MODES",
    "SKIP_KINDS",
    "AdvancedConfig",
    "AsyncConfig",
    "Mode",
    "RolloutConfig",
    "SkipConfig",
    "StreamerConfig",
    "SurviveConfig",
    "TrainConfig",
    "Weighting",
    "preset_levels",
    "with_flags",
    "words",
]
