"""Follow the README in a clean room, and record the seconds and the disk space that it takes.

    python -m benchmarks.newcomer [--try] [--output FILE]

The command clones the current commit into a folder that it removes afterwards, and runs the README's commands
unchanged, with the system's Python. The environment has only a home, a path, and the variables that tell pip
where packages are. First comes the main job under "Try it"; then, in another clone, the comparison with
RLinf's loop. With `--try`, only the main job runs. This module imports only the standard library, so that any
Python runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.newcomer.readme import COMPARE_HEADING, TRY_HEADING, commands_of
from benchmarks.newcomer.room import Room, clean_room, gigabytes

RESULT_FILE = Path(__file__).with_name("result.json")
VERSIONS_CODE = "import platform, torch; print(platform.python_version(), torch.__version__)"


def measured(room: Room, lines: list[str]) -> dict[str, object]:
    """Run `lines` in a new room; return the seconds, the disk space, and facts of the machine."""
    load = os.getloadavg()[0]
    took = room.follow(lines)
    python, torch = room.output_of(VERSIONS_CODE).split()
    return {
        "seconds": round(sum(float(str(one["seconds"])) for one in took), 1),
        "commands": took,
        "gigabytes": gigabytes(room.clone),
        "gigabytes_of_pips_cache": gigabytes(room.home),
        "python": python,
        "torch": torch,
        "environment": sorted(room.environment),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }


def in_words(facts: dict[str, object], name: str) -> str:
    return (
        f"clean room: {name} took {facts['seconds']} s and {facts['gigabytes']} GB "
        f"(and pip's cache {facts['gigabytes_of_pips_cache']} GB), with Python {facts['python']}, "
        f"torch {facts['torch']}, {facts['cores']} cores, load {facts['load_before']} before"
    )


def main(arguments: list[str]) -> int:
    """Follow the README, and write the measurements to the file of results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.newcomer", description=__doc__)
    parser.add_argument("--try", action="store_true", dest="only_try", help="the main job alone")
    parser.add_argument("--output", type=Path, default=RESULT_FILE)
    options = parser.parse_args(arguments)
    result = {}
    try:
        with clean_room() as room:
            main_job = commands_of((room.clone / "README.md").read_text(), TRY_HEADING)[:1]
            result["try"] = measured(room, main_job)
            print(in_words(result["try"], f"`{main_job[0]}`"), flush=True)
        if not options.only_try:
            with clean_room() as room:
                lines = commands_of((room.clone / "README.md").read_text(), COMPARE_HEADING)
                result["compare"] = measured(room, lines)
                print(in_words(result["compare"], "the comparison"), flush=True)
    except RuntimeError as error:
        print(f"clean room: {error}", flush=True)
        return 1
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
