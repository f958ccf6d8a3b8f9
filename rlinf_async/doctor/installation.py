"""Checks of the installed packages: versions, and the entry points of this package and of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.metadata import EntryPoint

from rlinf_async.extras import INSTALL_AGAIN, check_interpreter, pip_install
from rlinf_async.hosts.rlinf.checks import SHARED_IMPORTS
from rlinf_async.observe.check import Check
from rlinf_async.observe.probes import output_of, release

MODELS_IMPORT = "import transformers.modeling_utils"
"""A module that most models import, as does veRL, which is checked later: seconds of imports, made once."""
LOAD_ALL = """
from importlib.metadata import EntryPoint
from rlinf_async.extras import remedy
from rlinf_async.hosts.rlinf.imports import light_imports
looking = light_imports()
looking.__enter__()
needing = 0
for name, value, group in {points}:
    try:
        EntryPoint(name, value, group).load()
    except ModuleNotFoundError as error:
        if remedy(error) is None:
            raise
        needing += 1
print(needing)
"""
"""Imports the objects of entry points, and counts those that need a missing extra."""


def entry_points() -> list[EntryPoint]:
    """The entry points of all `rlinf_async.*` groups, from this package and from others."""
    points = {point for package in metadata.distributions() for point in package.entry_points}
    return sorted(point for point in points if point.group.startswith("rlinf_async."))


def check_python(version: tuple[int, ...], *, optimize: int = 0, warnings: Sequence[str] = ()) -> Check:
    """`optimize`, `warnings`: Python's flags of `PYTHONOPTIMIZE` and `PYTHONWARNINGS`."""
    text = ".".join(map(str, version))
    try:
        check_interpreter(optimize)
    except ValueError as error:
        detail, _, mend = str(error).partition("; ")
        return Check("python", "fail", detail, mend)
    if any(one.startswith("error") for one in warnings):
        detail = f"{text}; PYTHONWARNINGS makes warnings errors, and imports of torch and RLinf then fail"
        return Check("python", "warn", detail, "unset PYTHONWARNINGS")
    # Equal to `requires-python` in pyproject.toml.
    if (3, 11) <= version[:2] <= (3, 13):
        return Check("python", "ok", text)
    detail = f"{text}, where 3.11 to 3.13 are supported"
    return Check("python", "fail", detail, "make a virtual environment with python3.11")


def check_torch(installed: str | None) -> Check:
    remedy = "pip install 'torch>=2.6'"
    if installed is None:
        return Check("torch", "fail", "not installed", remedy)
    # Equal to the bound in pyproject.toml.
    if release(installed) < (2, 6):
        return Check("torch", "fail", f"{installed}, where at least 2.6 is needed", remedy)
    return Check("torch", "ok", installed)


def check_extras(versions: Mapping[str, str | None]) -> Check:
    """Check that `report` can make pages; runs do not need these packages."""
    missing = [package for package, installed in versions.items() if installed is None]
    if missing:
        return Check(
            "report", "warn", f"without {', '.join(missing)}: no pages of `report`", pip_install("report")
        )
    return Check("report", "ok", ", ".join(f"{name} {number}" for name, number in versions.items()))


def check_entry_points(points: Sequence[EntryPoint]) -> Check:
    """Check that the object of every entry point can be imported."""
    if not points:
        return Check("entry points", "fail", "none is installed", INSTALL_AGAIN)
    output, failure = output_of(
        LOAD_ALL.format(points=[(p.name, p.value, p.group) for p in points]),
        ground=(*SHARED_IMPORTS, MODELS_IMPORT),
    )
    if failure:
        return Check(
            "entry points", "fail", failure, "install the missing module, or remove the package that needs it"
        )
    needing = int(output.splitlines()[-1])
    if needing:
        detail = f"{len(points) - needing} of {len(points)} import; {needing} need a framework or a simulator"
        return Check("entry points", "ok", f"{detail} that is not installed")
    return Check("entry points", "ok", f"all {len(points)} import")
