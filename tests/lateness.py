"""The hour of .ci/run: what would begin after `TESTS_BEGIN_UNTIL`, in s since the epoch, is left out."""

import os
import time

WHY = "no time was left to begin it (TESTS_BEGIN_UNTIL): this machine is slow"


def is_too_late() -> bool:
    until = os.environ.get("TESTS_BEGIN_UNTIL")
    return until is not None and time.time() > float(until)
