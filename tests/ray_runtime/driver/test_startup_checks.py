import pytest

from rlinf_async import __version__
from rlinf_async.ray_runtime.driver.run import check_versions


class Fleet:
    """Answers calls to groups from a table, and writes them down."""

    def __init__(self, **answers):
        self.answers = answers
        self.calls = []

    def run(self, group, method, *arguments):
        self.calls.append((group, method, *arguments))
        return self.answers.get(f"{group}_{method}")


def test_another_version_on_one_rank_is_refused():
    same = [__version__] * 2
    fleet = Fleet(env_plugin_version=same, inference_plugin_version=[__version__, "0.0.1"])
    with pytest.raises(RuntimeError, match=r"inference rank 1 runs rlinf-async 0\.0\.1"):
        check_versions(fleet)
