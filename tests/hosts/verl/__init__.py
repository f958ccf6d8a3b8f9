"""Tests of the veRL host; those that need veRL itself train on CPU cores."""

import os

# veRL looks for its platform once, when it is imported.
os.environ.setdefault("VERL_PLATFORM", "cpu")
