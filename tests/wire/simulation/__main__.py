"""Replays schedules by their seeds, or tries many: `python -m tests.wire.simulation SEED...`."""

import argparse
import gc
import sys
import time
import traceback
from collections import Counter
from itertools import chain, count

from tests.wire.simulation.saving import SavingSchedule
from tests.wire.simulation.schedule import Schedule

NEW_OBJECTS = 20_000
"""Between two looks for cycles: a schedule makes many objects that go away by themselves."""


def main():
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
    parser = argparse.ArgumentParser(prog="python -m tests.wire.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed of many")
    parser.add_argument("--to", type=int, default=0, help="the seed behind the last of many")
    parser.add_argument("--seconds", type=float, help="how long seeds are tried, from the first one on")
    parser.add_argument("--disk", action="store_true", help="schedules of checkpoints on a disk")
    asked = parser.parse_args()
    kind = SavingSchedule if asked.disk else Schedule
    began, faults, bad, tried = time.process_time(), Counter(), [], 0
    give_up = None if asked.seconds is None else time.monotonic() + asked.seconds
    for seed in chain(asked.seeds, count(asked.first) if give_up else range(asked.first, asked.to)):
        if give_up and time.monotonic() > give_up:
            break
        tried += 1
        schedule = kind(seed)
        try:
            schedule.play()
        except Exception:  # noqa: BLE001 the others are tried, too
            bad.append(seed)
            traceback.print_exc()
        faults.update({name: count for name, count in schedule.out.counts().items() if count})
        if asked.seeds or seed in bad:
            sys.stdout.write(f"{schedule}\n{schedule.out}\n")
    rate = tried / (time.process_time() - began)
    sys.stdout.write(f"{tried} schedules, {rate:.1f} a CPU second; {dict(faults)}; bad: {len(bad)} {bad}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
