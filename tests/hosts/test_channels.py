"""The request channel and the coordinator load neither torch nor a framework, whichever host starts them."""

import pickle
import subprocess
import sys

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.entry_points import find
from rlinf_async.hosts.channels import CHANNELS_GROUP
from rlinf_async.hosts.rlinf.settings import read_settings
from rlinf_async.loops.run_settings import RunSettings
from tests.hosts.rlinf.given import ONE_EACH, config

AS_RAY_DOES = """
import pickle, sys
from importlib import import_module
settings = pickle.load(sys.stdin.buffer)
module, _, name = sys.argv[1].partition(":")
getattr(import_module(module), name)(settings, *map(int, sys.argv[2:]))
print([name for name in ("torch", "rlinf", "verl", "transformers") if name in sys.modules])
"""


def started(name, settings, *arguments):
    """The heavy modules of a process that has made the channel `name`, as Ray makes it."""
    command = [sys.executable, "-c", AS_RAY_DOES, find(CHANNELS_GROUP, name).value, *arguments]
    done = subprocess.run(command, input=pickle.dumps(settings), check=True, capture_output=True)
    return done.stdout.decode().strip()


def settings_of_rlinf():
    return read_settings(config(), AsyncConfig.from_mapping({"mode": "full"}), ONE_EACH)


@pytest.mark.parametrize(("name", "arguments"), [("requests", ()), ("coordinator", ("0",))])
def test_a_process_that_passes_no_tensors_loads_neither_torch_nor_a_framework(name, arguments):
    assert started(name, settings_of_rlinf().common(), *arguments) == "[]"


def test_common_settings_are_the_hosts_without_its_own():
    own = settings_of_rlinf()
    common = own.common()
    assert type(common) is RunSettings
    assert common.facts() == own.facts()
    assert (common.renews, common.optimizer_steps) == (own.renews, own.optimizer_steps)
