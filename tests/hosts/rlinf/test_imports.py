"""Torch's compiler and sharded tensors are loaded when they are used first, not by an import of RLinf."""

import pytest
import torch

from rlinf_async.hosts.rlinf.imports import compiled_when_called
from tests.fresh import TORCH_AND_RAY, printed


@pytest.fixture
def asked(monkeypatch):
    """What `torch.compile` is asked to compile, with the options; what it returns adds one."""
    found = []

    def compile_now(function, **options):
        found.append((function, options))
        return lambda *given, **named: function(*given, **named) + 1

    monkeypatch.setattr(torch, "compile", compile_now)
    return found


def test_a_function_is_compiled_once_by_its_first_call_with_its_options(asked):
    def double(number, *, more=0):
        """Doubled."""
        return 2 * number + more

    with compiled_when_called():
        plain, with_options = torch.compile(double), torch.compile(dynamic=True)(double)
    assert not asked
    assert [plain(3), plain(3, more=4), with_options(5)] == [7, 11, 11]
    assert asked == [(double, {}), (double, {"dynamic": True})]
    assert (plain.__name__, plain.__doc__) == ("double", "Doubled.")


def test_a_method_gets_its_object(asked):
    with compiled_when_called():

        class Counter:
            start = 4

            @torch.compile
            def count(self, number):
                return self.start + number

    assert Counter().count(2) == 7


def test_a_module_is_compiled_at_once_and_so_is_a_function_behind_the_block(asked):
    module = torch.nn.Identity()
    with compiled_when_called():
        torch.compile(module)
    assert asked == [(module, {})]
    torch.compile(len)
    assert asked[1:] == [(len, {})]


def run(code, ground=TORCH_AND_RAY):
    return printed(code, ground=ground).split()


@pytest.mark.parametrize("worker", ["env_worker", "rollout_worker"])
def test_a_worker_process_imports_its_class_without_torchs_compiler_and_sharded_tensors(worker):
    said = run(
        f"import sys, rlinf_async.hosts.rlinf.{worker}, rlinf.config\n"
        "late = {'torch._dynamo', 'torch._inductor', 'transformers', 'torch.distributed.tensor', 'sympy'}\n"
        "print(late & set(sys.modules) or 'nothing')\n"
        "import torch\n"
        "print(rlinf.config.squared_relu.__name__, torch.compile.__module__)\n"
    )
    assert said == ["nothing", "squared_relu", "torch"]


def test_the_driver_and_a_learner_import_rlinfs_actor_without_what_loads_language_models():
    said = run("""
import sys, rlinf_async.hosts.rlinf.actor_worker
from rlinf.hybrid_engines.fsdp import fsdp_model_manager, utils
late = {"torch._dynamo", "torch._inductor", "transformers", "accelerate"}
print(late & set(sys.modules) or "nothing")
from torch import nn
print(utils.get_module_class_from_name(nn.Sequential(nn.Linear(2, 3)), "Linear").__name__)
with utils.init_empty_weights():
    print(nn.Linear(2, 3).weight.device.type)
import transformers
print(fsdp_model_manager.AutoConfig.for_model("gpt2", n_layer=3).n_layer)
print(isinstance(nn.Linear(2, 3), fsdp_model_manager.AutoConfig))
names = fsdp_model_manager.AutoModelForVision2Seq._model_mapping.keys()
print(names == transformers.AutoModelForVision2Seq._model_mapping.keys(), len(names) > 9)
""")
    assert said == ["nothing", "Linear", "meta", "3", "False", "True", "True"]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("rlinf.models.other", "from transformers import AutoConfig, AutoTokenizer"),
        ("ours", "from transformers import AutoConfig"),
        ("rlinf.models.other", "import transformers"),
    ],
)
def test_modules_that_want_other_names_get_them_from_transformers(module, line):
    said = run(f"""
import sys
from rlinf_async.hosts.rlinf.imports import light_imports
with light_imports():
    exec({line!r}, {{"__name__": {module!r}}})
print("transformers" in sys.modules)
""")
    assert said == ["True"]


def test_a_class_of_rlinf_may_extend_a_name_that_comes_late():
    said = run("""
from rlinf_async.hosts.rlinf.late_imports import LateName
Mapping = LateName("collections.abc", "Mapping")
class Own(Mapping):
    def __getitem__(self, key): return key
    def __iter__(self): return iter(())
    def __len__(self): return 3
import collections.abc
print(issubclass(Own, collections.abc.Mapping), isinstance({}, Mapping), isinstance([], Mapping))
print(len(Own()), Mapping == collections.abc.Mapping, Mapping == LateName("collections.abc", "Mapping"))
print(issubclass(dict, Mapping), issubclass(list, Mapping))
""")
    assert said == ["True", "True", "False", "3", "True", "True", "True", "False"]


def test_an_annotation_with_typings_names_loads_no_module():
    said = run(
        """
import sys
from typing import Optional, Union
from rlinf_async.hosts.rlinf.late_imports import LateName
Sheet, Rows = LateName("csv", "DictReader"), LateName("csv", "DictWriter")
class Reader:
    def read(self, sheet: Optional[Sheet], one: Union[Sheet, Rows], other: Sheet | None) -> list[Sheet]: ...
print("csv" in sys.modules)
import csv
print(isinstance(csv.DictReader([]), Sheet), Sheet == csv.DictReader, Sheet == Rows)
""",
        ground="",
    )
    assert said == ["False", "True", "True", "False"]


@pytest.mark.parametrize("worker", [False, True])
def test_a_driver_loads_rlinfs_learner_without_fsdp_and_a_worker_with_it(worker):
    said = run(f"""
import os, sys
os.environ |= {{"WORKER_NAME": "ActorGroup:0"}} if {worker} else {{}}
from rlinf_async.hosts.rlinf.actor_worker import StreamingActorWorker
from rlinf.hybrid_engines import fsdp
print("torch.distributed.fsdp" in sys.modules, "ray.util.state.api" in sys.modules)
from torch.distributed.fsdp import FSDPModule, ShardingStrategy
from ray.util.state import list_actors
print(fsdp.FSDPModule is FSDPModule, fsdp.ShardingStrategy.FULL_SHARD is ShardingStrategy.FULL_SHARD)
from rlinf.scheduler.cluster import cluster
print(cluster.list_actors == list_actors)
""")
    assert said == [str(worker), "False", str(worker), "True", "True"]


def test_rlinf_tells_sharded_tensors_from_others_before_and_after_there_are_any():
    said = run("""
import sys, torch
from rlinf_async.hosts.rlinf.imports import LateDTensor, light_imports
with light_imports():
    from rlinf.utils.utils import DTensor, materialize_tensor
assert DTensor is LateDTensor
assert materialize_tensor(torch.arange(3)).tolist() == [0, 1, 2]
print("torch.distributed.tensor" in sys.modules)
from torch import distributed
distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
from torch.distributed.tensor import Shard, distribute_tensor
sharded = distribute_tensor(torch.arange(3), distributed.init_device_mesh("cpu", (1,)), [Shard(0)])
print(type(materialize_tensor(sharded)).__name__, isinstance(torch.arange(3), DTensor))
print(type(DTensor.from_local(torch.arange(2), sharded.device_mesh)).__name__)
""")
    assert said == ["False", "Tensor", "False", "DTensor"]


@pytest.mark.parametrize(
    ("module", "line", "late"),
    [
        ("rlinf.utils.utils", "from torch.distributed.tensor import DTensor", True),
        ("rlinf.utils.utils", "from torch.distributed.tensor import DTensor, Shard", False),
        ("rlinf.utils.utils", "import torch.distributed.tensor", False),
        ("rlinfer", "from torch.distributed.tensor import DTensor", False),
    ],
)
def test_only_a_module_of_rlinf_that_wants_the_class_alone_gets_a_stand_in(module, line, late):
    said = run(f"""
import sys
from rlinf_async.hosts.rlinf.imports import light_imports
with light_imports():
    exec({line!r}, {{"__name__": {module!r}}})
print("torch.distributed.tensor" in sys.modules)
""")
    assert said == [str(not late)]


def test_once_torchs_class_is_loaded_modules_of_rlinf_get_that():
    said = run("""
from torch.distributed.tensor import DTensor
from rlinf_async.hosts.rlinf.imports import light_imports
own = {"__name__": "rlinf.utils.utils"}
with light_imports():
    exec("from torch.distributed.tensor import DTensor", own)
print(own["DTensor"] is DTensor)
""")
    assert said == ["True"]


def test_behind_the_block_imports_are_as_ever():
    said = run("""
import builtins
before = builtins.__import__
from rlinf_async.hosts.rlinf.imports import light_imports
with light_imports():
    pass
print(builtins.__import__ is before)
""")
    assert said == ["True"]
