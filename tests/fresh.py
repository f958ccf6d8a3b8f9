"""What code prints in a process that has imported nothing but what a test allows.

Imports of torch, Ray and RLinf take seconds. An interpreter that has made those of `ground` is forked for
each piece of code, which finds everything else as a new Python would.
"""

import atexit
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

from rlinf_async.observe.forking import ForkingInterpreter

TORCH_AND_RAY = "import torch, ray"
ROOT = str(Path(__file__).parents[1])
HERE = f"import sys; {ROOT!r} in sys.path or sys.path.insert(0, {ROOT!r})"
"""The package of this checkout comes first, also in a copy of it."""
TIMEOUT_S = 300.0
NONE: Mapping[str, str] = {}


@cache
def interpreter(ground: str) -> ForkingInterpreter:
    """One for all tests of this process that allow the same imports."""
    made = ForkingInterpreter()
    atexit.register(made.__exit__)
    return made


def run(code: str, *, ground: str = "", env: Mapping[str, str] = NONE) -> CompletedProcess[str]:
    """Run `code` behind the imports `ground`."""
    # The whole environment: the interpreter was started with that of an earlier test.
    whole = {**os.environ, **env}
    done = interpreter(ground).run(code, env=whole, ground=(HERE, ground), timeout=TIMEOUT_S)
    assert done is not None, f"no process can be forked behind {ground!r}"
    return done


def printed(code: str, *, ground: str = "", env: Mapping[str, str] = NONE) -> str:
    """Run `code` behind the imports `ground`, and return what it prints."""
    done = run(code, ground=ground, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout
