"""Torch's compiler is loaded by the first call of what is compiled, not by an import of RLinf."""

import subprocess
import sys

import pytest
import torch

from rlinf_async.hosts.rlinf.compiler import compiled_when_called


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


@pytest.mark.parametrize("worker", ["env_worker", "rollout_worker"])
def test_a_worker_process_imports_its_class_without_torchs_compiler(worker):
    code = (
        f"import sys, rlinf_async.hosts.rlinf.{worker}, rlinf.config\n"
        "print({'torch._dynamo', 'torch._inductor', 'transformers'} & set(sys.modules) or 'nothing')\n"
        "import torch\n"
        "print(rlinf.config.squared_relu.__name__, torch.compile.__module__)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.stdout.split() == ["nothing", "squared_relu", "torch"], process.stdout + process.stderr
