"""Starts a worker process of Ray's that gets variables of its own.

Ray runs its script of this name for that: it loads Ray, which takes half a second, and then starts Python
again. This one loads nothing, and leaves all that it does not know to Ray's. It is run by its path, so it
imports nothing of this package.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="
EMPTY: tuple[Any, ...] = (None, [], "")


def command(arguments: list[str]) -> tuple[dict[str, str], list[str]] | None:
    """Return the variables to set, and the command of the worker process; None if Ray has to do it."""
    contexts = [word for word in arguments if word.startswith(CONTEXT)]
    languages = [word for word in arguments if word.startswith(LANGUAGE)]
    # Ray starts Python by way of bash, which would run the file in BASH_ENV.
    if len(contexts) != 1 or languages != [f"{LANGUAGE}PYTHON"] or "BASH_ENV" in os.environ:
        return None
    context = json.loads(contexts[0].removeprefix(CONTEXT))
    variables, python = context.pop("env_vars", {}), context.pop("py_executable", None) or sys.executable
    if any(value not in EMPTY for value in context.values()):
        return None
    # A profiler's command line is no file; and Ray replaces names of variables in values.
    if not Path(python).is_absolute() or not os.access(python, os.X_OK) or "$" in "".join(variables.values()):
        return None
    return variables, [python, *(word for word in arguments if word not in (*contexts, *languages))]


def rays_script() -> str:
    """Return the path of Ray's script of this name."""
    ray: Any = find_spec("ray")  # present, as it has started this process
    return str(Path(ray.origin).parent / "_private" / "workers" / Path(__file__).name)


if __name__ == "__main__":
    found = command(sys.argv[1:])
    if found is None:
        os.execv(sys.executable, [sys.executable, rays_script(), *sys.argv[1:]])
    os.environ.update(found[0])
    os.execv(found[1][0], found[1])
