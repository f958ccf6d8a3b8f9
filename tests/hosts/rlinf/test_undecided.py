"""A key that nobody has decided on is named, and refused where RLinf's own workers would have read it."""

import os

from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf import keys as module
from rlinf_async.hosts.rlinf.host import RLinfHost
from rlinf_async.hosts.rlinf.keys import read_by_others, undecided
from rlinf_async.observe.display import RunDisplay
from tests.hosts.rlinf.given import config

NEW = {
    "env.brand_new_packing.enable": True,
    "rollout.brand_new_switch": True,
    "algorithm.brand_new_loss": 3,
    "somebody.elses": 1,
}


def test_a_new_key_in_any_section_is_named_with_its_value():
    said = list(undecided(config(NEW)))
    assert {line.partition(":")[0] for line in said} == {
        "env.brand_new_packing.enable=True",
        "rollout.brand_new_switch=True",
        "algorithm.brand_new_loss=3",
        "somebody.elses=1",
    }
    assert not list(read_by_others(config(NEW)))
    assert not list(undecided(config()))


def test_a_key_that_is_nearly_a_known_one_is_named_with_that():
    (said,) = undecided(config({"algorithm.gama": 0.9}))
    assert said.endswith("did you mean algorithm.gamma?")


def test_what_packages_prepare_and_what_is_null_is_not_named():
    assert not list(undecided(config({"warm_start.seed": 3, "algorithm.brand_new_loss": None})))


def test_a_key_that_rlinfs_own_workers_read_is_refused_unless_it_is_off(monkeypatch):
    monkeypatch.setattr(module, "_sources", lambda: "if cfg.env.get('brand_new_packing'): compress()")
    (reason,) = read_by_others(config(NEW))
    assert reason.text.startswith(
        "env.brand_new_packing.enable=True is read by RLinf's own workers or runner"
    )
    assert reason.override == "~env.brand_new_packing.enable"
    assert len(list(undecided(config(NEW)))) == len(NEW) - 1
    off = config({"env.brand_new_packing.enable": False})
    assert not list(read_by_others(off))
    assert list(undecided(off))


def test_the_sources_of_the_workers_that_are_replaced_are_found():
    assert "class EnvWorker" in module._sources()
    assert "class MultiStepRolloutWorker" in module._sources()
    assert "class EmbodiedRunner" in module._sources()


def test_explain_and_a_run_both_name_it(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    cfg = compose_config(
        "metaworld_ppo_mlp",
        ["~warm_start", "+algorithm.brand_new_loss=3", f"runner.logger.log_path={tmp_path / 'run'}"],
    )
    said: list[str] = []
    monkeypatch.setattr(RunDisplay, "note", lambda _, text: said.append(text))
    remarks = RLinfHost().explain(cfg)["remarks"]
    RLinfHost().prepare(cfg)
    for notes in (remarks, said):
        assert any(note.startswith("algorithm.brand_new_loss=3: nobody has looked at") for note in notes)
