"""Checks of what is installed: versions, entry points, and the hooks that carry the plugin into RLinf."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

from rlinf_async.doctor.check import Check, probe
from rlinf_async.extras import RLINF, pip_install
from rlinf_async.hosts.rlinf.compat import SUPPORTED, RLinfTree, rlinf_tree

INSTALL_AGAIN = "in the checkout of rlinf-async: pip install --force-reinstall --no-deps ."

RAY_FIXES = (
    ((2, 52), "CVE-2025-62593: a web page opened in a browser can run code through the dashboard"),
    ((2, 54), "CVE-2026-27482: a web page opened in a browser can delete jobs through the dashboard"),
)
"""Ray releases that closed a hole in the dashboard, which RLinf always starts."""

DRIVER_PROBE = """
from hydra.core.plugins import Plugins
names = [plugin.__name__ for plugin in Plugins.instance().discover()]
if "RLinfAsyncSearchPath" not in names:
    import hydra_plugins.rlinf_async_search_path  # Hydra only warns when this fails; here it raises
    raise AssertionError("Hydra did not discover RLinfAsyncSearchPath")
from rlinf.scheduler import Cluster
assert hasattr(Cluster.__init__, "watched"), "the Hydra plugin does not watch for RLinf's cluster"
from rlinf_async import plugin
plugin.register()
"""

WORKER_PROBE = """
from rlinf.scheduler.cluster import load_user_extension_module
load_user_extension_module()
from rlinf_async import plugin
if not plugin.is_registered():
    plugin.register()  # RLinf logs what went wrong and goes on; this raises it
    raise AssertionError("RLinf did not call rlinf_async.plugin.register()")
"""


def version(package: str) -> str | None:
    """The installed version of a distribution, without importing it; None when it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def release(text: str) -> tuple[int, ...]:
    """The numbers that a version starts with: `2.52.0rc1` is (2, 52, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def entry_points() -> list[EntryPoint]:
    """Every class that is offered to this package, by itself or by a third one."""
    points = {point for package in metadata.distributions() for point in package.entry_points}
    return sorted(point for point in points if point.group.startswith("rlinf_async."))


def scan_source() -> Path | None:
    """RLinf's file that would scan entry points, found without importing RLinf; None without RLinf."""
    tree = rlinf_tree()
    return tree.root / "scheduler" / "cluster" / "utils.py" if tree else None


def check_python(found: tuple[int, ...]) -> Check:
    text = ".".join(map(str, found))
    if (3, 11) <= found[:2] <= (3, 13):
        return Check("python", "ok", text)
    detail = f"{text}, where 3.11 to 3.13 are supported"
    return Check("python", "fail", detail, "make a virtual environment with python3.11")


def check_torch(found: str | None) -> Check:
    mend = "pip install 'torch>=2.6'"
    if found is None:
        return Check("torch", "fail", "not installed", mend)
    if release(found) < (2, 6):
        return Check("torch", "fail", f"{found}, where at least 2.6 is needed", mend)
    return Check("torch", "ok", found)


def check_rlinf(tree: RLinfTree | None) -> Check:
    """Whether the RLinf that `import rlinf` gives, from a checkout or installed, can be extended."""
    if tree is None:
        return Check("rlinf", "fail", "import rlinf finds nothing", RLINF)
    if tree.missing:
        detail = f"{tree.version} in {tree.root} lacks {', '.join(tree.missing)}"
        return Check("rlinf", "fail", detail, f"use RLinf {SUPPORTED}")
    return Check("rlinf", "ok", f"{tree.version} in {tree.root}")


def check_ray(found: str | None) -> Check:
    mend = f"pip install 'ray[default]>={'.'.join(map(str, RAY_FIXES[-1][0]))},<3'"
    if found is None:
        return Check("ray", "fail", "not installed", mend)
    holes = [reason for fixed, reason in RAY_FIXES if release(found) < fixed]
    if holes:
        return Check("ray", "warn", f"{found} has {'; '.join(holes)}", mend)
    return Check("ray", "ok", found)


def check_range(package: str, found: str | None, *, least: tuple[int, ...], below: tuple[int, ...]) -> Check:
    """Whether `package` is installed with `least <= found < below`."""
    wanted = f">={'.'.join(map(str, least))},<{'.'.join(map(str, below))}"
    mend = f"pip install '{package}{wanted}'"
    if found is None:
        return Check(package, "fail", "not installed", mend)
    if not least <= release(found) < below:
        return Check(package, "fail", f"{found}, where {wanted} is needed", mend)
    return Check(package, "ok", found)


def check_extras(found: Mapping[str, str | None]) -> Check:
    """Whether pages and charts can be made; runs need none of it."""
    missing = [package for package, installed in found.items() if installed is None]
    if missing:
        detail = f"without {', '.join(missing)}: no pages of `report`, or no charts of `bench` and `sweep`"
        return Check("report, charts", "warn", detail, pip_install("report", "bench"))
    return Check("report, charts", "ok", ", ".join(f"{name} {number}" for name, number in found.items()))


def check_entry_points(points: Sequence[EntryPoint]) -> Check:
    """Whether every class that is offered under our groups can be imported."""
    if not points:
        return Check("entry points", "fail", "none is installed", INSTALL_AGAIN)
    code = "from importlib.metadata import EntryPoint\n"
    code += "\n".join(f"EntryPoint({p.name!r}, {p.value!r}, {p.group!r}).load()" for p in points)
    failure = probe(code)
    if failure:
        return Check(
            "entry points", "fail", failure, "install what it names, or remove the package that declares it"
        )
    return Check("entry points", "ok", f"all {len(points)} import")


def check_driver_hook(code: str = DRIVER_PROBE) -> Check:
    """Whether Hydra, in a process that has RLinf, finds and runs our plugin."""
    failure = probe(code)
    if failure:
        return Check("driver hook", "fail", failure, INSTALL_AGAIN)
    return Check("driver hook", "ok", "Hydra brings the plugin to runs that ask for it")


def check_worker_hook(code: str = WORKER_PROBE) -> Check:
    """Whether RLinf's worker start, which only logs a failure, loads our plugin."""
    failure = probe(code, env={"RLINF_EXT_MODULE": "rlinf_async.plugin"})
    if failure:
        return Check(
            "worker hook", "fail", failure, "import rlinf_async.plugin in Python and mend what it raises"
        )
    return Check("worker hook", "ok", "RLINF_EXT_MODULE registers the plugin")


def check_plugin_scan(source: Path | None) -> Check:
    """Which way into RLinf is taken; both work."""
    if source is None or not source.is_file():
        return Check("rlinf plugins", "fail", "import rlinf finds nothing", RLINF)
    scanned = "rlinf.plugins" in source.read_text()
    detail = "RLinf scans entry points" if scanned else "RLinf does not scan entry points: the hooks are used"
    return Check("rlinf plugins", "ok", detail)
