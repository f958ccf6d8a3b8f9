"""What importance weights are at most where a part of an action is scored; docs/flow-weight.md says why."""

MAX_WEIGHT_OF_ONE_STEP = 2.0
"""Of one step's, which is at least 0, too: bounds as far from 1 keep its mean at 1."""
MAX_WEIGHT_OF_ALL_STEPS = 4.0
"""Of the product over all steps: it keeps at least a quarter of a batch's samples in effect."""
