"""Replays schedules by their seeds, or tries many: `python -m tests.wire.simulation SEED...`."""

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.wire.simulation.schedule import Schedule


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.wire.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed of many")
    parser.add_argument("--to", type=int, default=0, help="the seed behind the last of many")
    asked = parser.parse_args()
    began, faults, bad = time.process_time(), Counter(), []
    seeds = [*asked.seeds, *range(asked.first, asked.to)]
    for seed in seeds:
        schedule = Schedule(seed)
        try:
            schedule.play()
        except Exception:  # noqa: BLE001 the others are tried, too
            bad.append(seed)
            traceback.print_exc()
        faults.update(schedule.out.faults)
        if asked.seeds or seed in bad:
            sys.stdout.write(f"{schedule}\n{schedule.out}\n")
    rate = len(seeds) / (time.process_time() - began)
    sys.stdout.write(
        f"{len(seeds)} schedules, {rate:.1f} a CPU second; {dict(faults)}; bad: {len(bad)} {bad}\n"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
