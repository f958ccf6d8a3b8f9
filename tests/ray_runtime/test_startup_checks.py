import pytest

from rlinf_async import __version__
from rlinf_async.ray_runtime.startup_checks import check_versions, share_memory


class Fleet:
    """Answers calls to groups from a table, and writes them down."""

    def __init__(self, **answers):
        self.answers = answers
        self.calls = []

    def run(self, group, method, *arguments):
        self.calls.append((group, method, *arguments))
        return self.answers.get(f"{group}_{method}")


def test_observations_are_shared_by_the_env_workers_that_every_inference_rank_can_read():
    fleet = Fleet(
        env_offer_memory=["a", "b", "c"], inference_reads=[[True, True, False], [True, False, True]]
    )
    assert share_memory(fleet) == [True, False, False]
    assert fleet.calls[1:] == [
        ("inference", "reads", ["a", "b", "c"]),
        ("env", "share_memory", [True, False, False]),
    ]


def test_another_version_on_one_rank_is_refused():
    same = [__version__] * 2
    fleet = Fleet(env_plugin_version=same, inference_plugin_version=[__version__, "0.0.1"])
    with pytest.raises(RuntimeError, match=r"inference rank 1 runs rlinf-async 0\.0\.1"):
        check_versions(fleet)
