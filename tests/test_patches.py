"""The patches apply to the supported RLinf, and change what their ledger says that they change."""

from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="the patches are for RLinf")

from rlinf_async.hosts.rlinf.tree import read_tree
from tests import patching

DRIVER = """
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError
from rlinf.config import validate_cfg
try:
    validate_cfg(OmegaConf.create({}))
except ConfigAttributeError:
    pass  # an empty config has no runner; plugins come before that
"""

WORKER = """
from rlinf.scheduler import Worker
worker = object.__new__(Worker)
worker._load_user_extensions()
worker._load_user_extensions()
"""

PROCESSES = [pytest.param(DRIVER, id="driver", marks=pytest.mark.nightly), pytest.param(WORKER, id="worker")]
"""It is started for each; one driver is among the shorter tests in its place: `twice`."""

LOADED = """
import throwaway
assert throwaway.calls == {calls}, throwaway.calls
"""


IMPORTS = """
import os
os.environ.pop("RLINF_EXT_MODULE", None)
import gymnasium, torch
import rlinf.config, rlinf.envs.metaworld.metaworld_env, rlinf.scheduler
import rlinf.hybrid_engines.fsdp.strategy.fsdp2, rlinf.hybrid_engines.fsdp.utils
import rlinf.workers.actor.async_ppo_fsdp_worker
"""
"""Most of what the scripts import, and nothing that looks for plugins."""


@pytest.fixture(scope="module")
def run():
    """Runs code with the RLinf of a folder."""
    with patching.forks(IMPORTS) as run:
        yield run


@pytest.fixture(scope="module")
def stock(tmp_path_factory) -> Path:
    """A folder that holds a copy of the installed RLinf."""
    return patching.copy_of("rlinf", tmp_path_factory.mktemp("stock"))


@pytest.fixture(scope="module")
def patched(tmp_path_factory) -> Path:
    """A folder that holds an RLinf with every patch applied in the order of their numbers."""
    return patching.patched("rlinf", tmp_path_factory.mktemp("patched"))


@pytest.fixture
def plugin(tmp_path) -> Path:
    """A folder that is installed as a package with one RLinf plugin, which counts its calls."""
    source = "calls = 0\n\ndef register():\n    global calls\n    calls += 1\n"
    return patching.installed_plugin(tmp_path, "rlinf.plugins", value="throwaway:register", source=source)


@pytest.fixture
def broken(plugin) -> Path:
    (plugin / "throwaway.py").write_text("import no_such_module\n")
    return plugin


def test_every_patch_applies_without_fuzz_and_only_to_the_package(patched):
    assert [path.name for path in patched.iterdir()] == ["rlinf"]


def test_patched_rlinf_has_what_our_classes_need(patched):
    assert read_tree(patched / "rlinf").missing == ()


@pytest.mark.parametrize("patch", patching.patches_of("rlinf"), ids=lambda patch: patch.name)
def test_a_patch_is_ready_for_upstream_and_in_the_ledger(patch):
    patching.check_form(patch)


@pytest.mark.parametrize("process", PROCESSES)
def test_stock_rlinf_does_not_call_an_installed_plugin(run, process, stock, plugin):
    done = run(process + LOADED.format(calls=0), stock, plugin)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("process", [*PROCESSES, pytest.param(DRIVER + DRIVER, id="twice")])
def test_patched_rlinf_calls_an_installed_plugin_once_in_every_process(run, process, patched, plugin):
    done = run(process + LOADED.format(calls=1), patched, plugin)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("process", PROCESSES)
def test_patched_rlinf_registers_this_package_without_any_hook(run, process, patched):
    done = run(process + "\nfrom rlinf_async import plugin\nassert plugin.is_registered()", patched)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("process", PROCESSES)
def test_patched_rlinf_raises_with_the_name_of_a_plugin_that_fails(run, process, patched, broken):
    done = run(process, patched, broken)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: ")
    assert "thrown" in last
    assert "no_such_module" in last


def test_stock_rlinf_goes_on_without_an_extension_module_that_fails(run, stock, broken):
    done = run(WORKER, stock, RLINF_EXT_MODULE="no_such_extension")
    assert done.returncode == 0, done.stderr


def test_patched_rlinf_raises_with_the_name_of_an_extension_module_that_fails(run, patched, tmp_path):
    done = run(WORKER, patched, RLINF_EXT_MODULE="no_such_extension")
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: ")
    assert "no_such_extension" in last
    assert "RLINF_EXT_MODULE" in last
    (tmp_path / "raising.py").write_text("def register():\n    raise KeyError('missing')\n")
    assert "missing" in run(WORKER, patched, tmp_path, RLINF_EXT_MODULE="raising").stderr.splitlines()[-1]


def test_patched_rlinf_still_loads_an_extension_module(run, patched, plugin):
    # Once as a plugin, and at each of the two starts of a worker as the extension module.
    done = run(WORKER + LOADED.format(calls=3), patched, plugin, RLINF_EXT_MODULE="throwaway")
    assert done.returncode == 0, done.stderr


NORM = """
import os
import sys
from types import SimpleNamespace
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from rlinf.hybrid_engines.fsdp.strategy.fsdp2 import FSDP2Strategy

child = os.fork()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(not child), world_size=2)
torch.manual_seed(0)
plain, sharded = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)
sharded.load_state_dict(plain.state_dict())
fully_shard(sharded, mesh=init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=["fsdp"]))
for model in (plain, sharded):
    model(torch.ones(3, 6)).square().sum().backward()
expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
strategy = SimpleNamespace(_dp_group=None, cfg=SimpleNamespace(optim=SimpleNamespace(clip_grad=0.5)))
norm = FSDP2Strategy.clip_grad_norm_(strategy, sharded)
same = abs(norm - expected) < 1e-4 and all(
    torch.allclose(one.grad.full_tensor(), other.grad, atol=1e-5)
    for one, other in zip(sharded.parameters(), plain.parameters())
)
dist.barrier()
dist.destroy_process_group()
other = os.waitpid(child, 0)[1] if child else 0
sys.exit(0 if same == (sys.argv[1] == "patched") and not other else 1)
"""
"""Clips a sharded gradient on two ranks, the second of which is a child."""


TIED = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy
from rlinf.hybrid_engines.fsdp.utils import apply_fsdp2_to_model


class Block(torch.nn.Linear):
    pass


class Policy(torch.nn.Module):
    _no_split_modules, _no_split_names = ["Block"], ["head"]

    def __init__(self):
        super().__init__()
        self.embedding, self.block = torch.nn.Embedding(8, 4), Block(4, 4)
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.head._fsdp_wrap_name = "head"

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)))


def step(model):
    model(torch.arange(6)).square().sum().backward()
    return [getattr(each.grad, "full_tensor", lambda: each.grad)() for each in model.parameters()]


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
plain, sharded = Policy(), Policy()
sharded.load_state_dict(plain.state_dict())
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=["fsdp"])
try:
    apply_fsdp2_to_model(sharded, {}, mesh, MixedPrecisionPolicy(), OffloadPolicy(), True)
    found = step(sharded)
except ValueError as error:
    assert "is shared with a parameter" in str(error), error
    sys.exit(0 if sys.argv[1] == "stock" else 1)
same = all(torch.allclose(one, other) for one, other in zip(found, step(plain), strict=True))
sys.exit(0 if same and sys.argv[1] == "patched" else 1)
"""


SELECTING = """
import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace
import torch
from omegaconf import OmegaConf
from rlinf.workers.actor import async_ppo_fsdp_worker as module

worker = next(each for each in vars(module).values() if hasattr(each, "compute_proximal_logprobs"))
steps, envs, drawn, chunk, dim = 2, 3, 4, 5, 7


class Model:
    asked = None

    def eval(self):
        pass

    train = eval

    def __call__(self, forward_inputs, **kwargs):
        self.asked = kwargs
        return {"logprobs": kwargs["prev_logprobs"][:, 0]}


def actor(model_type):
    cfg = {
        "actor": {
            "model": {"model_type": model_type}, "micro_batch_size": 3, "global_batch_size": 6, "seed": 0
        },
        "algorithm": {"normalize_advantages": False, "adv_type": "gae", "entropy_bonus": 0.0},
    }
    stored = torch.arange(steps * envs * drawn * chunk * dim).reshape(steps, envs, drawn, chunk, dim).float()
    inputs = {"state": torch.zeros(steps, envs, 1)}
    batch = {"prev_logprobs": stored, "forward_inputs": inputs, "advantages": torch.zeros(steps, envs, 1)}
    state = {"is_weight_offloaded": False, "is_optimizer_offloaded": False, "_rank": 0, "_world_size": 1}
    return SimpleNamespace(
        cfg=OmegaConf.create(cfg), rollout_batch=batch, model=Model(), device="cpu", version=0, **state,
        amp_context=nullcontext(), optimizer=SimpleNamespace(zero_grad=lambda: None),
        before_micro_batch=lambda *given, **named: nullcontext(),
    )


module.put_tensor_device = lambda data, device: data
os.environ["LOCAL_RANK"] = "0"
missing, misshaped = set(), set()
for name in ("gr00t", "gr00t_n1d6", "gr00t_n1d7", "abot_m0"):
    made = actor(name)
    try:
        worker.compute_proximal_logprobs(made)
        found, stored = (made.rollout_batch[name] for name in ("proximal_logprobs", "prev_logprobs"))
        assert torch.equal(found, stored[:, :, 0])
    except (KeyError, RuntimeError):
        misshaped.add(name)
    made = actor(name)
    try:
        worker.run_training(made)
    except KeyError as error:
        if error.args == ("prev_logprobs",) and "prev_logprobs" not in made.model.asked:
            missing.add(name)
    assert made.model.asked is not None
wanted = {"stock": ({"gr00t_n1d6", "gr00t_n1d7"}, 4), "patched": (set(), 0)}[sys.argv[1]]
assert (missing, len(misshaped)) == wanted, (missing, misshaped)
"""


RENDERING = """
import os
import sys
from types import SimpleNamespace
import gymnasium
from rlinf.envs.metaworld.metaworld_env import MetaWorldEnv


class Started(Exception):
    pass


def make(*args, **kwargs):
    raise Started(os.environ["MUJOCO_EGL_DEVICE_ID"])


gymnasium.make = make
env = object.__new__(MetaWorldEnv)
env.seed_offset, env.num_envs, env.cfg = 5, 1, SimpleNamespace(seed=0)
env.env_names_all, env.task_descriptions_all, env.task_ids = ["reach-v3"], ["reach"], [0]
for given, stock, patched in (("3", "5", "3"), (None, "5", "5")):
    os.environ.pop("MUJOCO_EGL_DEVICE_ID", None)
    if given is not None:
        os.environ["MUJOCO_EGL_DEVICE_ID"] = given
    try:
        env.get_env_fns()[0]()
    except Started as started:
        assert started.args == ({"stock": stock, "patched": patched}[sys.argv[1]],), started
"""


ENTROPY = """
import sys
import torch
from rlinf.utils.utils import masked_mean, reshape_entropy

for size in (4, 16):
    given = torch.arange(size * 6.0).reshape(size, 6)
    mask = (torch.arange(size) % 2 == 0).reshape(size, 1)
    of_each = given.sum(dim=-1)
    expected = {"stock": of_each.sum(), "patched": of_each[::2].mean()}[sys.argv[1]]
    entropy = reshape_entropy(given, entropy_type="chunk_level", action_dim=3, batch_size=size)
    assert torch.allclose(masked_mean(entropy, mask), expected)
    assert torch.allclose(masked_mean(entropy, None), of_each.mean())

from rlinf_async.hosts.rlinf.left_out import is_summed
from rlinf_async.hosts.rlinf.view import RLinfView

config = {
    "algorithm": {"entropy_bonus": 0.01, "entropy_type": "chunk_level"},
    "actor": {"model": {"model_type": "mlp_policy"}},
    "env": {"train": {}},
}
assert is_summed(RLinfView.of(config)) == (sys.argv[1] == "stock")
"""

EQUAL_REWARDS = """
import sys
import torch
from rlinf.algorithms.advantages import compute_grpo_advantages, compute_grpo_dynamic_advantages

def advantages(rewards):
    size = rewards.numel()
    yield compute_grpo_advantages(rewards, torch.ones(1, size), size)[0]
    for mode in ("trajectory", "turn"):
        given = rewards.reshape(size, 1), torch.ones(1, size), size, list(range(size))
        yield compute_grpo_dynamic_advantages(*given, advantage_mode=mode)[0]

rounded = torch.full((4,), 510.0)
rounded[0] = torch.nextafter(rounded[0], torch.tensor(600.0))
for equal in (torch.full((7,), 0.7), rounded):
    for found in advantages(equal):
        assert (found == 0).all() == (sys.argv[1] == "patched"), found
for apart in (torch.tensor([0.0, 1.0, 1.0, 1.0]), torch.tensor([510.0, 510.1, 510.0, 509.9])):
    for found in advantages(apart):
        assert torch.allclose(found, (apart - apart.mean()) / (apart.std() + 1e-6)), found
"""

NORMALIZED = """
import sys
from contextlib import nullcontext
from types import SimpleNamespace
import torch
from omegaconf import OmegaConf
from rlinf.workers.actor import async_ppo_fsdp_worker as asynchronous
from rlinf.workers.actor import fsdp_actor_worker as sync

steps, envs = 4, 3


def advantages(worker, said):
    algorithm = {
        "adv_type": "gae", "gamma": 1.0, "gae_lambda": 1.0, "group_size": 1, "reward_type": "chunk_level",
        "normalize_advantages": said,
    }
    batch = {
        "rewards": torch.arange(steps * envs).reshape(steps, envs, 1).float(),
        "dones": torch.zeros(steps + 1, envs, 1, dtype=torch.bool),
        "prev_values": torch.zeros(steps + 1, envs, 1),
    }
    actor = SimpleNamespace(
        cfg=OmegaConf.create({"algorithm": algorithm}), rollout_batch=batch,
        worker_timer=lambda label: nullcontext(), _accelerator_type=None,
    )
    actor.cfg.runner = {"task_type": "embodied"}
    worker.compute_advantages_and_returns(actor)
    return actor.rollout_batch["advantages"]


for module, name in ((sync, "EmbodiedFSDPActor"), (asynchronous, "AsyncPPOEmbodiedFSDPActor")):
    module.compute_rollout_metrics = lambda batch: {}
    normalized, as_they_are = (advantages(getattr(module, name), said) for said in (True, False))
    assert abs(normalized.mean()) < 1e-5
    obeyed = bool(as_they_are.mean() > 10)
    assert obeyed == (sys.argv[1] == "patched"), (name, as_they_are)
"""

AGED = """
import sys
from types import SimpleNamespace
import torch
from omegaconf import OmegaConf
from rlinf.workers.actor.async_ppo_fsdp_worker import AsyncPPOEmbodiedFSDPActor


def received(threshold):
    taken = []
    actor = SimpleNamespace(
        cfg=OmegaConf.create({"algorithm": threshold}), version=5, should_stop=False,
        log_info=lambda text: None, _recv_queue=SimpleNamespace(put=taken.append),
    )
    for name in ("_staleness_threshold", "_is_too_old"):
        if hasattr(AsyncPPOEmbodiedFSDPActor, name):
            setattr(actor, name, getattr(AsyncPPOEmbodiedFSDPActor, name).__get__(actor))
    trajectories = [SimpleNamespace(versions=torch.tensor([age])) for age in (1, 4)]

    class Channel:
        def get(self):
            actor.should_stop = len(trajectories) == 1
            return trajectories.pop(0)

        def qsize(self):
            return 0

    AsyncPPOEmbodiedFSDPActor._recv_rollout_thread_main(actor, Channel())
    return len(taken)


assert received({"staleness_threshold": 2}) == 1
try:
    found = received({})
except TypeError:
    found = None
assert found == {"stock": None, "patched": 2}[sys.argv[1]], found
"""

WARMED_UP = """
import sys
from types import SimpleNamespace
import torch
from omegaconf import OmegaConf
from rlinf.hybrid_engines.fsdp.fsdp_model_manager import FSDPModelManager

folder = sys.argv[2] + "-checkpoint"
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


class Strategy:
    def clip_grad_norm_(self, model):
        return torch.tensor(1.0)

    def save_checkpoint(self, model, optimizer, scheduler, path, **_):
        import os
        os.makedirs(path, exist_ok=True)
        torch.save([each.state_dict() for each in (model, optimizer, scheduler)], path + "/state.pt")

    def load_checkpoint(self, model, optimizer, scheduler, path):
        states = torch.load(path + "/state.pt", weights_only=False)
        for each, state in zip((model, optimizer, scheduler), states):
            each.load_state_dict(state)


def manager():
    torch.manual_seed(0)
    made = object.__new__(FSDPModelManager)
    parts = {"policy": torch.nn.Linear(3, 2), "value_head": torch.nn.Linear(3, 1)}
    made.model = torch.nn.ModuleDict(parts)
    optim = {"lr": 1e-2, "value_lr": 1e-1, "adam_beta1": 0.9, "adam_beta2": 0.9}
    made._cfg = OmegaConf.create({"optim": optim, "fsdp_config": {}})
    made._logger = SimpleNamespace(info=lambda text: None, warning=lambda text: None)
    made._strategy, made.store_requires_grad_param_name = Strategy(), []
    made.optimizer_steps, made.critic_warmup_steps = 0, 2
    made.is_weight_offloaded = made.is_optimizer_offloaded = False
    made.optimizer = made.build_optimizer(model=made.model, enable_critic_warmup=True)
    made.lr_scheduler = made.build_lr_scheduler(optimizer=made.optimizer, optim_config=made._cfg.optim)
    made.grad_scaler = made.build_grad_scaler(False)
    return made


def step(made):
    for parameter in made.model.parameters():
        parameter.grad = torch.cos(parameter.detach()) if parameter.requires_grad else None
    made.optimizer_step()
    return [parameter.detach().clone() for parameter in made.model.parameters()]


one, resumed = manager(), manager()
for _ in range(4):
    step(one)
one.save_checkpoint(folder)
try:
    resumed.load_checkpoint(folder)
    goes_on = all(map(torch.equal, step(one), step(resumed)))
except ValueError:
    goes_on = False  # the state is of two groups, and the optimizer has one
assert goes_on == (sys.argv[1] == "patched")
"""

GROUPS = """
import sys
import numpy as np, torch
from omegaconf import OmegaConf
import rlinf.envs.metaworld.metaworld_env as module


class Suite:
    def __init__(self, name):
        pass

    def get_num_tasks(self):
        return 2

    def get_task_num_trials(self):
        return 10

    def get_env_names(self):
        return ["reach-v3", "push-v3"]

    get_task_description = get_env_names


module.MetaWorldBenchmark = Suite  # the wheel lacks the file with RLinf's own list
# Without pictures, which take a renderer.
module.MetaWorldEnv._wrap_obs = lambda self, raw: {"states": torch.from_numpy(np.array(raw))}


def built():
    cfg = OmegaConf.create({
        "seed": 7, "group_size": 2, "use_fixed_reset_state_ids": True, "is_eval": False,
        "use_ordered_reset_state_ids": False, "ignore_terminations": False, "auto_reset": True,
        "task_suite_name": "", "use_rel_reward": False, "reward_coef": 1.0, "max_episode_steps": 50,
        "video_cfg": {},
    })
    return module.MetaWorldEnv(cfg, 2, 0, 1, None)


starts = []
for env in (built(), built()):
    env.is_start = True
    starts.append(env.reset()[0]["states"])
alike = bool((starts[0][0] == starts[0][1]).all() and (starts[0] == starts[1]).all())
before = env.step(np.zeros((2, 4)), auto_reset=False)[0]["states"]
after = env.reset(env_idx=np.array([0]), reset_state_ids=env.reset_state_ids[[0]])[0]["states"]
left_alone = bool((before[1] == after[1]).all())
assert alike == left_alone == (sys.argv[1] == "patched"), (alike, left_alone)
assert not alike or bool((after[0] == starts[0][0]).all())
"""

LAST_REWARD = """
import sys
import torch
from tests.hosts.rlinf.resetting import maniskill

env = maniskill()
_, reward, ends, _, _ = env.step(torch.zeros(2, 1))
assert ends.tolist() == [True, False]
env = maniskill()
_, rewards, _, _, infos = env.chunk_step(torch.zeros(2, 2, 1))
assert rewards.tolist() == [[1.0, 2.0], [1.0, 2.0]]
counted = [info["elapsed_steps"].tolist() for info in (infos[0], infos[1]["final_info"])]
right = (reward.tolist() == [1.0, 1.0], counted == [[1, 1], [2, 2]])
assert right == (sys.argv[1] == "patched",) * 2, (reward, counted)
"""

COMPILED = """
import sys
import torch

asked = []


def compile(function):
    asked.append(function.__name__)
    return function


torch.compile = compile
sys.modules.pop("rlinf.config", None)
import rlinf.config

at_import = list(asked)
squares = rlinf.config.squared_relu(torch.tensor([-1.0, 3.0])), rlinf.config.squared_relu(torch.ones(1))
assert [one.tolist() for one in squares] == [[0.0, 9.0], [1.0]]
assert asked == ["squared_relu"], asked
assert at_import == ([] if sys.argv[1] == "patched" else asked), at_import
"""

MANAGERS = """
import sys

import rlinf.scheduler.cluster, rlinf.scheduler.manager

without_torch = "torch" not in sys.modules
assert without_torch == (sys.argv[1] == "patched"), without_torch
from rlinf.scheduler import *
from rlinf.scheduler import CommMapper, Worker, __all__
from rlinf.scheduler.worker import routing, worker

assert Worker is worker.Worker and CommMapper is routing.CommMapper
assert all(globals()[name].__name__ == name for name in __all__)
try:
    from rlinf.scheduler import nothing_of_this_name
except ImportError:
    pass
"""

SCRIPTS = {
    "compiled at import": COMPILED,
    "starts of a group": GROUPS,
    "last reward": LAST_REWARD,
    "critic's warm-up": WARMED_UP,
    "norm of two ranks": NORM,
    "tied weights": TIED,
    "stored log-probabilities": SELECTING,
    "rendering": RENDERING,
    "entropy": ENTROPY,
    "equal rewards": EQUAL_REWARDS,
    "normalization": NORMALIZED,
    "staleness": AGED,
}


@pytest.mark.parametrize("side", patching.SIDES)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_fault_of_rlinf_is_there_without_its_patch_and_gone_with_it(script, side, request, run, tmp_path):
    done = run(script, request.getfixturevalue(side), arguments=[side, str(tmp_path / "rendezvous")])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("side", patching.SIDES)
def test_managers_import_torch_without_the_patch_and_not_with_it(side, request):
    # In an interpreter of its own: that of the other scripts has imported torch.
    done = patching.run(f"import sys; sys.argv = ['', '{side}']\n{MANAGERS}", request.getfixturevalue(side))
    assert done.returncode == 0, done.stderr
