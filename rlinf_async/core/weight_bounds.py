"""Bounds on importance weights where a part of an action is scored; docs/flow-weight.md derives them."""

MAX_WEIGHT_OF_ONE_STEP = 2.0
"""Bound on the weight of one step, which is also at least 0: bounds as far from 1 keep its mean at 1."""
MAX_WEIGHT_OF_ALL_STEPS = 4.0
"""Bound on the product over all steps: it keeps at least a quarter of a batch's samples in effect."""
