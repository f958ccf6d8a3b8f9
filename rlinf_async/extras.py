"""Packages that a run needs: the extra that brings a module, the command that installs it, and whether the
interpreter can import it.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

RLINF_REMEDY = (
    "put a checkout of RLinf on PYTHONPATH, as RLinf's scripts do, or pip install --no-deps rlinf==0.3.0"
)
OTHERS = {
    "rlinf": f"RLinf: {RLINF_REMEDY}",
    "openpi": "openpi: install it as RLinf's documentation of pi0 says",
}
"""Modules that no extra brings: the name of the project, and how to install it."""
PROPER = ("torch", "numpy", "rich", "typer", "yaml", "packaging", "filelock", "hydra", "omegaconf", "psutil")
"""Modules that every installation has, unless it was made without dependencies."""
INSTALL_AGAIN = "in the checkout of rlinf-async: pip install --force-reinstall --no-deps ."

EXTRA_OF = {
    **dict.fromkeys(
        (
            "ray",
            "transformers",
            "huggingface_hub",
            "accelerate",
            "regex",
            "tensorboard",
        ),
        "rlinf",
    ),
    **dict.fromkeys(("gymnasium", "gym", "imageio", "cv2", "sortedcontainers", "safetensors"), "rlinf"),
    **dict.fromkeys(("metaworld", "mujoco"), "metaworld"),
    "jinja2": "report",
    "verl": "verl",
    **dict.fromkeys(("matplotlib", "scipy", "PIL"), "bench"),
}
"""Optional modules, and the extra that brings each."""

NO_DOCSTRINGS = 2
"""The level of `PYTHONOPTIMIZE` from which modules have no docstrings."""


def pip_install(*extras: str) -> str:
    """Return the command that installs the packages of some extras, such as `pip install 'jinja2>=3.1'`;
    without extras, the required dependencies.

    It names those packages and not this one, as the source of this package (checkout or index) is not known.
    """
    try:
        lines = requires("rlinf-async") or []
    except PackageNotFoundError:  # a checkout on the path that is not installed
        named = f"[{','.join(extras)}]" if extras else ""
        return f"pip install '.{named}' in the checkout"
    wanted = extras or (None,)
    packages = {re.split(r"\s*;", line)[0] for line in lines if _extra(line) in wanted}
    return " ".join(["pip install", *(f"'{requirement}'" for requirement in sorted(packages))])


def remedy(error: ModuleNotFoundError) -> str | None:
    """Return the remedy for a missing module, in a sentence; None if no extra brings it."""
    module = (error.name or "").partition(".")[0]
    if module in OTHERS:
        return f"this needs {OTHERS[module]}"
    if module in PROPER:
        return f"this needs {module}, which comes with rlinf-async: {pip_install()}"
    if module not in EXTRA_OF:
        return None
    extra = EXTRA_OF[module]
    return f"this needs {module}, which the extra {extra!r} brings: {pip_install(extra)}"


def _extra(requirement: str) -> str | None:
    """The extra in a line of metadata: `report` in `jinja2>=3.1; extra == 'report'`."""
    match = re.search(r"""extra == ['"](?P<extra>[^'"]+)""", requirement)
    return match["extra"] if match else None


def is_here(package: str) -> bool:
    """Return True if `package` can be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except ValueError:  # other code has put a module without a spec into `sys.modules`
        return True
    except ModuleNotFoundError:  # its parent package is missing, or a finder raises instead of returning None
        return False


def check_interpreter(optimize: int = sys.flags.optimize) -> None:
    """Check that Ray's modules, some of which add to their docstrings, can be imported.

    Raises:
        ValueError: Python runs without docstrings.
    """
    if optimize >= NO_DOCSTRINGS:
        raise ValueError(
            f"PYTHONOPTIMIZE={optimize} (python -OO) leaves out docstrings, without which Ray cannot be "
            "imported; unset PYTHONOPTIMIZE"
        )
