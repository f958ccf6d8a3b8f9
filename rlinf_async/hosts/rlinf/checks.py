"""`doctor`'s checks of RLinf: its version, its dependencies, and the plugin's hooks."""

from __future__ import annotations

from pathlib import Path

from rlinf_async.extras import INSTALL_AGAIN, RLINF_REMEDY, is_here
from rlinf_async.hosts.rlinf.models import PACKAGE_OF_MODEL
from rlinf_async.hosts.rlinf.tree import SUPPORTED_VERSIONS, RLinfTree, rlinf_tree, why_unserved
from rlinf_async.observe.check import Check, failures, without
from rlinf_async.observe.probes import check_range, probe, release, version

RAY_FIXES = (
    ((2, 52), "CVE-2025-62593: a web page opened in a browser can run code through the dashboard"),
    ((2, 54), "CVE-2026-27482: a web page opened in a browser can delete jobs through the dashboard"),
)
"""Ray releases that fixed a vulnerability of the dashboard, which RLinf always starts."""

SHARED_IMPORTS = (
    "import torch",
    """
from rlinf_async.hosts.rlinf.imports import light_imports
with light_imports():
    import rlinf.scheduler.cluster
    import rlinf_async.hosts.rlinf.hooks
""",
)
"""Imports that both probes need; if they fail, the probes report the reason."""

DRIVER_PROBE = """
from rlinf_async.hosts.rlinf.imports import light_imports
looking = light_imports()
looking.__enter__()
from hydra.core.plugins import Plugins
names = [plugin.__name__ for plugin in Plugins.instance().discover()]
if "RLinfAsyncSearchPath" not in names:
    import hydra_plugins.rlinf_async_search_path  # Hydra only warns when this fails; here it raises
    raise AssertionError("Hydra did not discover RLinfAsyncSearchPath")
from rlinf.scheduler import Cluster
if not hasattr(Cluster.__init__, "watched"):  # no `assert`, which PYTHONOPTIMIZE would leave out
    raise AssertionError("the Hydra plugin does not watch for RLinf's cluster")
from rlinf_async import plugin
plugin.register()
"""

WORKER_PROBE = """
from rlinf_async.hosts.rlinf.imports import light_imports
looking = light_imports()
looking.__enter__()
from rlinf.scheduler.cluster import load_user_extension_module
load_user_extension_module()
from rlinf_async import plugin
if not plugin.is_registered():
    plugin.register()  # RLinf logs what went wrong and goes on; this raises it
    raise AssertionError("RLinf did not call rlinf_async.plugin.register()")
"""


def checks() -> list[Check]:
    """Return all checks; their faults should be fixed in this order."""
    ground = [
        check_rlinf(rlinf_tree()),
        check_ray(version("ray")),
        check_range("hydra-core", version("hydra-core"), least=(1, 3), below=(1, 4)),
        check_range("omegaconf", version("omegaconf"), least=(2, 3), below=(2, 4)),
    ]
    if blocking := failures(ground):
        return [*ground, *without(blocking, "driver hook", "worker hook", "rlinf plugins", "models")]
    hooks = [check_driver_hook(), check_worker_hook(), check_plugin_scan(scan_source())]
    return [*ground, *hooks, check_models(version("transformers"))]


def scan_source() -> Path | None:
    """Return RLinf's file that may scan entry points, without importing RLinf; None without RLinf."""
    tree = rlinf_tree()
    return tree.root / "scheduler" / "cluster" / "utils.py" if tree else None


def check_rlinf(tree: RLinfTree | None) -> Check:
    """Check that this package can extend the RLinf that `import rlinf` finds."""
    if tree is None:
        return Check("rlinf", "fail", "import rlinf finds nothing", RLINF_REMEDY)
    if tree.missing:
        return Check("rlinf", "fail", why_unserved(tree), f"use RLinf {SUPPORTED_VERSIONS}")
    return Check("rlinf", "ok", f"{tree.version} in {tree.root}")


def check_ray(installed: str | None) -> Check:
    remedy = f"pip install 'ray[default]>={'.'.join(map(str, RAY_FIXES[-1][0]))},<3'"
    if installed is None:
        return Check("ray", "fail", "not installed", remedy)
    holes = [reason for fixed_in, reason in RAY_FIXES if release(installed) < fixed_in]
    if holes:
        return Check("ray", "warn", f"{installed} has {'; '.join(holes)}", remedy)
    return Check("ray", "ok", installed)


def check_driver_hook(code: str = DRIVER_PROBE) -> Check:
    """Check that Hydra, in a process with RLinf, finds and runs our plugin."""
    failure = probe(code, ground=SHARED_IMPORTS)
    if failure:
        return Check("driver hook", "fail", failure, INSTALL_AGAIN)
    return Check("driver hook", "ok", "Hydra brings the plugin to runs that ask for it")


def check_worker_hook(code: str = WORKER_PROBE) -> Check:
    """Check that RLinf loads our plugin when a worker starts, as RLinf only logs a failure."""
    failure = probe(code, env={"RLINF_EXT_MODULE": "rlinf_async.plugin"}, ground=SHARED_IMPORTS)
    if failure:
        return Check(
            "worker hook", "fail", failure, "import rlinf_async.plugin in Python and mend what it raises"
        )
    return Check("worker hook", "ok", "RLINF_EXT_MODULE registers the plugin")


def check_models(transformers: str | None) -> Check:
    """Report which packages of RLinf's models are installed; a missing one matters only to runs of its
    models.
    """
    runnable = sorted(name for name, package in PACKAGE_OF_MODEL.items() if is_here(package))
    absent = sorted({package for package in PACKAGE_OF_MODEL.values() if not is_here(package)})
    detail = f"transformers {transformers}" if transformers else "no transformers"
    detail += (
        f"; the packages of {', '.join(runnable)} are here"
        if runnable
        else "; mlp, cnn and flow policies alone"
    )
    if absent:
        detail += f"; without {', '.join(absent)}"
    return Check("models", "ok", detail)


def check_plugin_scan(source: Path | None) -> Check:
    """Report how the plugin gets into RLinf: by its scan of entry points or by our hooks; both work."""
    if source is None or not source.is_file():
        return Check("rlinf plugins", "fail", "import rlinf finds nothing", RLINF_REMEDY)
    scans = "rlinf.plugins" in source.read_text()
    detail = "RLinf scans entry points" if scans else "RLinf does not scan entry points: the hooks are used"
    return Check("rlinf plugins", "ok", detail)
