"""Tries out, before Ray starts, what veRL builds only in a learner rank: the optimizer and the FSDP units."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from rlinf_async.core.failures import LONGEST_ERROR, one_line
from rlinf_async.entry_points import MODELS_GROUP, load_class
from rlinf_async.hosts.judge.reasons import Reason, unknown_reason
from rlinf_async.hosts.kit.policy_size import is_declared
from rlinf_async.hosts.verl.installation import get_ready
from rlinf_async.hosts.verl.units import why_no_units
from rlinf_async.hosts.verl.view import OPTIM_SECTION, VerlView
from rlinf_async.loops.foreign import contained

USUAL_OPTIMIZER = ("AdamW", "torch.optim")
USUAL_ARGUMENTS = frozenset({"eps"})
"""Keys of `override_optimizer_config` that the usual optimizer takes, and that the table of keys judges."""
ARGUMENTS_KEY = f"{OPTIM_SECTION}.override_optimizer_config"
USUAL_UNITS = ("Linear", ["Linear"])
"""Values of `UNITS_KEY` that are not tried out, which takes torch's import: nearly all policies have them."""


def optimizer_reasons(view: VerlView) -> Iterator[Reason]:
    """Yield a reason if the optimizer of `view`, whose values have their kinds, cannot be found or built."""
    name, package = view.optimizer, view.optimizer_package
    own = {argument for argument, value in view.optimizer_arguments.items() if value is not None}
    is_usual = (name, package) == USUAL_OPTIMIZER and own == set(view.optimizer_arguments) <= USUAL_ARGUMENTS
    if is_usual or not (isinstance(name, str) and isinstance(package, str)):
        return
    try:
        module = contained(lambda: import_module(package), harmless)
    except ValueError as error:
        yield Reason(f"{OPTIM_SECTION}.optimizer_impl={package} cannot be imported: {error}")
        return
    if not hasattr(module, name):
        classes = [each for each, value in vars(module).items() if isinstance(value, type)]
        yield unknown_reason(f"{OPTIM_SECTION}.optimizer", name, classes, f"an optimizer of {package}")
        return
    if find_spec("verl") is None:
        return
    try:
        contained(lambda: _try_out(view), harmless)
    except ValueError as error:
        setting = (
            f"{OPTIM_SECTION}.optimizer={name} of {package} fails with lr, weight_decay and {ARGUMENTS_KEY}"
        )
        argument = next((each for each in view.optimizer_arguments if f"'{each}'" in str(error)), None)
        if argument is None:
            yield Reason(f"{setting}: {error}; use another optimizer, or other arguments")
        else:
            key = f"{ARGUMENTS_KEY}.{argument}"
            yield Reason(f"{setting}: {error}; remove {key}", f"~{key}")


def unit_reasons(view: VerlView) -> Iterator[Reason]:
    """Yield a reason if no layer of the policy has a class that FSDP2 is told to wrap.

    A policy without a checkpoint is built for it, without memory.
    """
    if view.units in USUAL_UNITS or not is_declared(view.model) or view.model.get("model_path"):
        return
    from rlinf_async.hosts.kit.building import built  # imports torch

    try:
        policy = contained(
            lambda: built(load_class(MODELS_GROUP, str(view.model_type)), view.model), harmless
        )
    except ValueError:
        return  # other checks give the reason
    if why := why_no_units(policy, view.units):
        yield Reason(why)


def harmless(error: BaseException) -> ValueError:
    """Return an exception of foreign code as a ValueError with its message in one line."""
    return ValueError(one_line(error, LONGEST_ERROR))


def _try_out(view: VerlView) -> None:
    """Let veRL build the optimizer for a matrix and a vector, and make a step."""
    import torch

    get_ready()
    from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (2,))]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    config = FSDPOptimizerConfig(
        optimizer=str(view.optimizer),
        optimizer_impl=str(view.optimizer_package),
        lr=view.learning_rate,
        weight_decay=view.weight_decay,
        betas=tuple(view.betas),
        override_optimizer_config=dict(view.optimizer_arguments),
    )
    build_optimizer([{"params": parameters}], config).step()
