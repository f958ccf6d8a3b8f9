"""What commands ask of the host, and checks of the installation, beside veRL."""

from importlib.util import find_spec

import pytest

from rlinf_async.doctor.installation import check_entry_points, entry_points
from rlinf_async.hosts.rlinf.host import RLinfHost
from rlinf_async.hosts.verl import installation
from rlinf_async.hosts.verl.host import VerlHost
from tests.hosts.verl.configs import composed


def test_our_own_commands_name_the_trainer_that_they_train_with():
    with pytest.raises(ValueError, match=r"veRL's own loop, which its own commands start; use .*vla_async"):
        VerlHost().explain(composed("trainer.v1.trainer_mode=sync", "async.mode=off"))


def test_verls_own_checks_are_errors_that_a_command_can_print():
    config = composed("actor_rollout_ref.rollout.val_kwargs.do_sample=true")
    config.actor_rollout_ref.rollout.temperature = 0
    with pytest.raises(ValueError, match="veRL refuses this config"):
        VerlHost().prepare(config)


def test_a_resolved_config_is_plain_and_leaves_the_given_one_alone():
    config = composed()
    resolved = VerlHost().resolved(config)
    assert resolved["async"]["rollout"]["shards"] == 2
    assert "rollout" not in config["async"]


def test_the_trainer_is_registered_by_importing_verl():
    assert installation.check_trainer().status == "ok"


def test_where_only_verl_is_installed_the_other_framework_is_not_missed():
    """The environment of `make setup-verl`; what each class imports is found by importing it."""
    if find_spec("rlinf"):
        pytest.skip("RLinf is installed here, too")
    (rlinf,) = RLinfHost().checks()
    assert (rlinf.status, rlinf.detail.split(";")[0]) == ("skip", "not tried: not installed")
    assert check_entry_points(entry_points()).status == "ok"
