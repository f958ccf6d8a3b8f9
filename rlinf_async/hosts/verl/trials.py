"""Makes veRL's own checks, and tries out before Ray starts what it finds or builds only in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import signature
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig

from rlinf_async.core.config_keys import did_you_mean
from rlinf_async.core.failures import LONGEST_ERROR, ForeignError, one_line
from rlinf_async.extras import is_here
from rlinf_async.hosts.judge.presence import own_check
from rlinf_async.hosts.judge.reasons import Reason, unknown_reason
from rlinf_async.hosts.verl.installation import get_ready
from rlinf_async.hosts.verl.units import trial_policy, why_no_units
from rlinf_async.hosts.verl.view import OPTIM_SECTION, VerlView
from rlinf_async.loops.foreign import AsOurs, contained

USUAL_OPTIMIZER = ("AdamW", "torch.optim")
USUAL_ARGUMENTS = frozenset({"eps"})
"""Keys of `override_optimizer_config` that the usual optimizer takes, and that the table of keys judges."""
ARGUMENTS_KEY = f"{OPTIM_SECTION}.override_optimizer_config"
USUAL_RAY_ARGUMENTS = frozenset(
    {"address", "include_dashboard", "num_cpus", "num_gpus", "resources", "runtime_env"}
)
"""Arguments of `ray.init` that are known without Ray's import."""


def harmless(error: BaseException) -> ValueError:
    """Return an exception of foreign code as a ValueError with its message in one line."""
    return ValueError(one_line(error, LONGEST_ERROR))


def tried(function: Callable[[], Any], as_ours: AsOurs = harmless) -> tuple[Any, str]:
    """Return what a function of foreign code returns, and its error in one line; "" if it has none, or if
    `as_ours` makes a ForeignError of it: this process may lack a GPU that a run has.
    """
    try:
        return contained(function, as_ours), ""
    except ForeignError:
        return None, ""
    except ValueError as error:
        return None, str(error)


def trial_reasons(view: VerlView) -> Iterator[Reason]:
    """Yield the reasons of all trials of `view`, whose values have their kinds."""
    yield from optimizer_reasons(view)
    yield from unit_reasons(view)
    yield from callback_reasons(view)
    yield from ray_reasons(view)


def validate(cfg: DictConfig) -> None:
    """Make veRL's own checks of its keys, and raise a RefusedError if one of them fails."""
    get_ready()
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    with own_check("veRL", HydraException):
        reference, critic = need_reference_policy(cfg), need_critic(cfg)
        validate_config(config=cfg, use_reference_policy=reference, use_critic=critic)


def optimizer_reasons(view: VerlView) -> Iterator[Reason]:
    """Yield a reason if the optimizer cannot be found or built."""
    name, package = view.optimizer, view.optimizer_package
    own = {argument for argument, value in view.optimizer_arguments.items() if value is not None}
    is_usual = (name, package) == USUAL_OPTIMIZER and own == set(view.optimizer_arguments) <= USUAL_ARGUMENTS
    if is_usual or not (isinstance(name, str) and isinstance(package, str) and is_here("verl")):
        return
    module, why = tried(lambda: import_module(package))
    if why:
        yield Reason(f"{OPTIM_SECTION}.optimizer_impl={package} cannot be imported: {why}")
    elif not hasattr(module, name):
        classes = [each for each, value in vars(module).items() if isinstance(value, type)]
        yield unknown_reason(f"{OPTIM_SECTION}.optimizer", name, classes, f"an optimizer of {package}")
    elif why := tried(lambda: _build_optimizer(view), _of_arguments(package))[1]:
        argument = next((each for each in view.optimizer_arguments if f"'{each}'" in why), None)
        override = "" if argument is None else f"~{ARGUMENTS_KEY}.{argument}"
        remedy = f"remove {override[1:]}" if override else "use another optimizer, or other arguments"
        setting = f"{OPTIM_SECTION}.optimizer={name} of {package}"
        yield Reason(f"{setting} fails with lr, weight_decay and {ARGUMENTS_KEY}: {why}; {remedy}", override)


def unit_reasons(view: VerlView) -> Iterator[Reason]:
    """Yield a reason if no layer of the policy has a class that FSDP2 is told to wrap."""
    if (policy := trial_policy(view)) is not None and (why := why_no_units(policy, view.units)):
        yield Reason(why)


def ray_reasons(view: VerlView) -> Iterator[Reason]:
    """Yield a reason for each key of `ray_kwargs.ray_init` that is no argument of `ray.init`."""
    if view.ray_arguments.keys() <= USUAL_RAY_ARGUMENTS:
        return
    import ray

    known = signature(ray.init).parameters
    for name in view.ray_arguments:
        if name not in known and not name.startswith("_"):
            text = f"ray_kwargs.ray_init.{name} is no argument of ray.init"
            yield Reason(f"{text}; remove it{did_you_mean(name, known)}", f"~ray_kwargs.ray_init.{name}")


def callback_reasons(view: VerlView) -> Iterator[Reason]:
    """Yield a reason if the class that veRL is to call after each checkpoint cannot be imported."""
    if not isinstance(path := view.callback, str) or not is_here("verl"):
        return
    module, _, name = path.rpartition(".")
    if why := tried(lambda: getattr(import_module(module), name).on_save)[1]:
        yield Reason(
            f"trainer.checkpoint_callback_class={path} must be package.module.Class, a class with on_save: "
            f"{why}"
        )


def _of_arguments(package: str) -> AsOurs:
    """Return what makes a ValueError of an optimizer's error if its arguments caused it, else a ForeignError.

    torch builds its optimizers without a GPU; those of other packages may raise a RuntimeError without one.
    """
    kinds = (Exception,) if package == USUAL_OPTIMIZER[1] else (TypeError, ValueError)
    return lambda error: harmless(error) if isinstance(error, kinds) else ForeignError.of(error)


def _build_optimizer(view: VerlView) -> None:
    """Let veRL build the optimizer for a matrix and a vector. A step of theirs may need a GPU."""
    import torch

    get_ready()
    from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (2,))]
    config = FSDPOptimizerConfig(
        optimizer=str(view.optimizer),
        optimizer_impl=str(view.optimizer_package),
        lr=view.learning_rate,
        weight_decay=view.weight_decay,
        betas=tuple(view.betas),
        override_optimizer_config=dict(view.optimizer_arguments),
    )
    build_optimizer([{"params": parameters}], config)
