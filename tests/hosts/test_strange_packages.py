"""Environments and policies of packages that break the rules of docs/extending.md: a sentence that names what
is wrong, and no other error; what is only unusual trains.
"""

import signal
import sys
from functools import partial
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from rlinf_async import entry_points
from rlinf_async.core.failures import Terminated
from rlinf_async.core.restarts import RestartBudget
from rlinf_async.hosts.judge.presence import model_reasons
from rlinf_async.hosts.local import LocalTrainer
from rlinf_async.hosts.local.config import settings_of
from rlinf_async.hosts.local.declared import environments_of, policy_of
from rlinf_async.hosts.local.host import LocalHost
from rlinf_async.hosts.policy_contract import keeping_defaults
from rlinf_async.hosts.rlinf.worker_process import DeclaredBuilder
from rlinf_async.hosts.workers.policy import make_policy
from rlinf_async.loops import env_restarts
from tests.extending_page import FILE, PAGE
from tests.hosts.local_runs import nobody_is_left

pytestmark = pytest.mark.timeout(120)

CONFIG = {
    "host": "local",
    "run_dir": "nowhere",
    "env": {"env_class": "theirs", "max_episode_steps": 8},
    "model": {"model_type": "theirs", "action_dim": 2, "num_action_chunks": 2},
    "settings": {
        "total_envs": 4,
        "horizon": 4,
        "batches": 1,
        "global_batch_size": 16,
        "micro_batch_size": 8,
    },
}


FILES = {match["name"]: match["text"] for match in FILE.finditer(PAGE.read_text())}


def of_page(name):
    """A module of the package in docs/extending.md."""
    module = ModuleType(name)
    exec(compile(FILES[name], name, "exec"), vars(module))
    return module


PAGE_ENV, PAGE_MODEL = of_page("my_points/env.py").PointEnv, of_page("my_points/model.py").LinearPolicy


@pytest.fixture
def declared(monkeypatch):
    """Declares `envs` and `models`, which may be anything, as entry points of a package `theirs`."""
    monkeypatch.setattr(env_restarts, "RestartBudget", partial(RestartBudget, first_wait_s=0.0))
    module = ModuleType("theirs")
    monkeypatch.setitem(sys.modules, "theirs", module)
    values = {entry_points.ENVS_GROUP: "theirs:env", entry_points.MODELS_GROUP: "theirs:build"}

    def provided(group):
        entries = EntryPoints(EntryPoint("theirs", value, group) for value in [values.get(group)] if value)
        for entry in entries:
            vars(entry)["dist"] = SimpleNamespace(name="their-package")
        return entries

    monkeypatch.setattr(entry_points, "provided", provided)

    def declare(env=PAGE_ENV, build=lambda cfg, _: PAGE_MODEL(cfg), **names):
        module.env, module.build = env, build
        values.update({getattr(entry_points, group): value for group, value in names.items()})
        return OmegaConf.create(CONFIG)

    return declare


def run(cfg):
    settings = settings_of(cfg)
    return LocalTrainer(settings, environments_of(cfg, settings), policy_of(cfg)).run()


def refusal(cfg):
    with pytest.raises((ValueError, RuntimeError)) as raised:
        run(cfg)
    assert nobody_is_left()
    text = str(raised.value)
    assert len(text.splitlines()) == 1
    return text


def env_with(**methods):
    return type("Odd", (PAGE_ENV,), methods)


def model_with(**methods):
    cls = type("Odd", (PAGE_MODEL,), methods)
    return lambda cfg, _: cls(cfg)


@pytest.mark.parametrize("group", ["ENVS_GROUP", "MODELS_GROUP"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("nowhere_to_be_found:it", "cannot be imported: ModuleNotFoundError: No module named"),
        ("theirs:nothing", "cannot be imported: AttributeError: module 'theirs' has no attribute 'nothing'"),
        ("theirs_exits:it", "cannot be imported: SystemExit: 3; mend the package their-package"),
        ("theirs_fails:it", "cannot be imported: RuntimeError: two lines; mend the package their-package"),
        ("theirs:__name__", "has to name a class or a function, and names a str"),
        ("theirs", "has to name a class or a function, and names a module"),
    ],
)
def test_an_entry_point_that_names_nothing_that_works_is_named(
    declared, group, value, said, tmp_path, monkeypatch
):
    (tmp_path / "theirs_exits.py").write_text("raise SystemExit(3)")
    (tmp_path / "theirs_fails.py").write_text("raise RuntimeError('two\\nlines')")
    monkeypatch.syspath_prepend(tmp_path)
    cfg = declared(**{group: value})
    with pytest.raises(ValueError, match=r"^the entry point theirs = ") as raised:
        environments_of(cfg, settings_of(cfg)), policy_of(cfg)
    assert said in str(raised.value)
    if group == "MODELS_GROUP":
        (reason,) = model_reasons(OmegaConf.to_container(cfg.model), key="model")
        assert said in reason.text


class Refusing:
    """Refuses to be copied."""

    def __deepcopy__(self, memo):
        raise OSError("not\nnow")


def shown(value):
    """A class of environments whose observations have one more field."""

    def observation(self):
        return {**PAGE_ENV._observation(self), "more": value(self._states)}

    return env_with(_observation=observation)


def reporting(change):
    """A class of environments with other results of a decision."""

    def chunk_step(self, actions):
        return change(*PAGE_ENV.chunk_step(self, actions))

    return env_with(chunk_step=chunk_step)


ENVIRONMENTS = {
    "rewards for ends": (
        reporting(lambda seen, rewards, ends, cuts, info: (seen, ends, rewards + 0.5, cuts, info)),
        "(Odd) have given terminations with the number 0.5; expected was true or false",
    ),
    "no method": (
        env_with(chunk_step=None),
        "env.env_class=theirs has made an object of the class Odd, which",
    ),
    "none": (lambda *_: None, "has made an object of the class NoneType, which lacks reset, chunk_step,"),
    "an attribute": (
        env_with(auto_reset=property(lambda self: np.zeros(2), lambda self, _: None)),
        "Odd.auto",
    ),
    "sparse": (
        shown(lambda x: x.to_sparse()),
        "(Odd) have given the observation 'more' that cannot be copied",
    ),
    "without data": (shown(lambda x: x.to("meta")), "(Odd) have given the observation 'more' that cannot be"),
    "an object": (
        shown(lambda _: Refusing()),
        "'more' that cannot be copied (OSError: not now); expected was",
    ),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments_that_no_run_can_use_are_named(declared, name):
    env, said = ENVIRONMENTS[name]
    assert said in refusal(declared(env))


def deciding(change):
    def predict_action_batch(self, *args, **options):
        actions, result = PAGE_MODEL.predict_action_batch(self, *args, **options)
        return change(actions, result)

    return model_with(predict_action_batch=predict_action_batch)


def without(name):
    return deciding(lambda actions, result: (actions, {key: result[key] for key in result if key != name}))


def giving(**fields):
    return deciding(
        lambda actions, result: (actions, {**result, **{k: v(actions) for k, v in fields.items()}})
    )


def scoring(change):
    return model_with(forward=lambda self, **inputs: change(self.default_forward(**inputs)))


def switching_gradients_off(self, *args, **options):
    torch.set_grad_enabled(False)
    return PAGE_MODEL.default_forward(self, *args, **options)


def frozen(cfg, _):
    return PAGE_MODEL(cfg).requires_grad_(False)


def changing_shapes():
    calls = iter(range(1, 1000))
    return giving(
        forward_inputs=lambda actions: {
            "states": torch.zeros(len(actions), 2),
            "action": actions.flatten(1),
            "more": torch.zeros(len(actions), next(calls)),
        }
    )


NO_POLICY = {
    "none": (lambda *_: None, "the builder has returned None; expected was a torch.nn.Module"),
    "a class": (lambda *_: PAGE_MODEL, "the builder has returned a type; expected was a torch.nn.Module"),
    "no policy": (lambda *_: torch.nn.Linear(2, 2), "Linear has no method predict_action_batch"),
    "no forward": (model_with(forward=None), "Odd has no method forward"),
    "frozen": (frozen, "LinearPolicy has no parameter that requires a gradient"),
}
POLICIES = {
    "no log-probabilities": (without("prev_logprobs"), "has given no prev_logprobs beside its actions"),
    "no inputs": (without("forward_inputs"), "has given no forward_inputs beside its actions"),
    "words": (
        giving(forward_inputs=lambda actions: {"words": ["go"] * len(actions)}),
        "has given forward_inputs.words as a list that is no array of numbers",
    ),
    "two values": (
        giving(prev_values=lambda actions: torch.zeros(len(actions), 2)),
        "decisions; expected was [",
    ),
    "other shapes": (changing_shapes(), "the policy's forward_inputs differ between decisions: more is ["),
    "not finite": (
        giving(prev_values=lambda actions: torch.full((len(actions), 1), float("nan"))),
        "nothing is trained yet, so look at the policy's code and at its first weights",
    ),
    "no scores": (scoring(lambda _: None), "the policy's forward has given None; expected was a mapping"),
    "a tuple": (
        scoring(tuple),
        "the policy's forward has given a tuple; expected was a mapping with logprobs",
    ),
    "one score": (
        scoring(lambda scores: {**scores, "logprobs": scores["logprobs"][:1]}),
        "has given logprobs by forward [1, 2, 2] for ",
    ),
    "no values": (
        scoring(lambda scores: {"logprobs": scores["logprobs"]}),
        "Odd has a value_head, and its forward has given no values",
    ),
    "no gradient": (
        scoring(lambda scores: {name: value.detach() for name, value in scores.items()}),
        "the policy's forward has given logprobs without a gradient",
    ),
    "gradients off": (
        model_with(default_forward=switching_gradients_off),
        "the policy's forward has given logprobs without a gradient",
    ),
    "other arguments": (
        model_with(forward=lambda self, inputs: inputs),
        "the policy has failed on a scoring pass: TypeError",
    ),
    "no copies": (
        model_with(__deepcopy__=lambda self, memo: Refusing().__deepcopy__(memo)),
        "the policy has failed on a copy for inference: OSError: not",
    ),
}


@pytest.mark.parametrize("name", NO_POLICY)
def test_what_a_builder_makes_is_a_policy(declared, name):
    build, said = NO_POLICY[name]
    assert said in refusal(declared(build=build))
    if name != "frozen":
        (reason,) = model_reasons(CONFIG["model"], key="model")
        assert said in reason.text


@pytest.mark.parametrize("name", POLICIES)
def test_what_a_policy_gives_that_nothing_can_be_trained_by_is_named(declared, name):
    build, said = POLICIES[name]
    cfg = declared(build=build)
    with pytest.raises((ValueError, RuntimeError)) as raised:
        run(cfg)
    assert said in str(raised.value)
    assert nobody_is_left()


@pytest.mark.parametrize("mode", ["off", "full"])
def test_a_policy_that_changes_the_default_type_while_it_acts_is_named_and_the_type_is_put_back(
    declared, mode
):
    def act(self, *args, **options):
        torch.set_default_dtype(torch.float64)
        return PAGE_MODEL.predict_action_batch(self, *args, **options)

    cfg = OmegaConf.merge(
        declared(build=model_with(predict_action_batch=act)),
        {"async": {"mode": mode, "rollout": {"shards": 1}}},
    )
    said = (
        "the policy has failed on inference rank 0: ValueError: its modules have set torch's default type to"
    )
    assert said in refusal(cfg)
    assert torch.get_default_dtype() is torch.float32


UNUSUAL = {
    "reversed arrays": deciding(
        lambda actions, result: (actions.numpy()[:, :, ::-1].copy()[:, :, ::-1], result)
    ),
    "lists": deciding(lambda actions, result: (actions.tolist(), result)),
    "no critic": without("prev_values"),
}


def in_other_precision(seen, *others):
    return [{**last, "states": last["states"].double()} for last in seen], *others


def test_steps_in_another_precision_than_resets_train(declared):
    assert run(declared(reporting(in_other_precision))).ledger.trained == 4


@pytest.mark.parametrize("raised", [SystemExit(3), GeneratorExit()])
def test_whatever_a_builder_raises_is_one_reason(declared, raised):
    def build(cfg, _):
        raise raised

    declared(build=build)
    (reason,) = model_reasons(CONFIG["model"], key="model")
    assert reason.text.startswith(f"model does not make a theirs: {type(raised).__name__}")


def test_a_signal_that_ends_the_process_is_no_fault_of_the_builder_that_it_interrupts(declared):
    def build(cfg, _):
        raise Terminated(signal.SIGTERM)  # as its handler does

    declared(build=build)
    with pytest.raises(Terminated):
        list(model_reasons(CONFIG["model"], key="model"))


def test_a_default_device_of_the_caller_s_own_is_put_back():
    torch.set_default_device("meta")
    try:
        with pytest.raises(ValueError, match="it has set torch's default device"), keeping_defaults("it"):
            torch.set_default_device("cpu")
        assert torch.empty(0).device.type == "meta"
    finally:
        torch.set_default_device(None)


CHANGES = {
    "type": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_builder_that_changes_a_default_of_torch_is_named_and_the_default_is_put_back(declared, name):
    def build(cfg, _):
        CHANGES[name]()
        return PAGE_MODEL(cfg)

    cfg = declared(build=build)
    assert (
        f"theirs cannot be built on this process: ValueError: the builder has set torch's default {name}"
        in refusal(cfg)
    )
    assert (torch.get_default_dtype(), torch.empty(0).device.type) == (torch.float32, "cpu")


@pytest.mark.parametrize("name", CHANGES)
def test_the_judge_of_a_config_and_workers_of_every_framework_refuse_a_builder_that_changes_a_default(
    declared, name
):
    def build(cfg, _):
        CHANGES[name]()
        return PAGE_MODEL(cfg)

    declared(build=build)
    said = f"the builder has set torch's default {name} to "
    if name == "type":  # the judge builds on a device of its own choice
        (reason,) = model_reasons(CONFIG["model"], key="actor.model")
        assert said in reason.text
    makers = [lambda: make_policy(CONFIG["model"], None, ckpt_path=None, seed=0)]
    (entry,) = entry_points.provided(entry_points.MODELS_GROUP)
    makers.append(lambda: DeclaredBuilder(entry)(OmegaConf.create(CONFIG["model"]), torch.float32))
    for make in makers:
        with pytest.raises(ValueError, match=said):
            make()
        assert (torch.get_default_dtype(), torch.empty(0).device.type) == (torch.float32, "cpu")


@pytest.mark.parametrize("fails", [False, True])
def test_a_builder_that_changes_the_default_type_is_refused_before_the_run(declared, tmp_path, fails):
    def build(cfg, _):
        torch.set_default_dtype(torch.float64)
        if fails:
            raise ValueError("the builder fails, and its change is undone")
        return PAGE_MODEL(cfg)

    cfg = OmegaConf.merge(declared(build=build), {"run_dir": str(tmp_path / "run")})
    said = "the builder fails" if fails else "has set torch's default type"
    with pytest.raises(ValueError, match=f"^model does not make a theirs: .*{said}"):
        LocalHost().prepare(cfg)
    assert torch.get_default_dtype() is torch.float32
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_only_unusual_trains(declared, name):
    assert run(declared(build=UNUSUAL[name])).ledger.trained == 4
