"""Keys in open blocks that nothing in RLinf reads."""

import pytest

from rlinf_async.hosts.rlinf import strange_keys as strange_keys_module
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.sources import sources_of
from rlinf_async.hosts.rlinf.strange_keys import DEPTHS, OTHER_WORDS, strange_keys
from tests.hosts.rlinf.given import config


def said(changes, unresolved=None):
    return list(strange_keys(config(changes), unresolved=unresolved))


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("actor.optim.learning_rate", 1e-4, "actor.optim.lr"),
        ("actor.optim.lr_sheduler", "cosine", "actor.optim.lr_scheduler"),
        (
            "actor.fsdp_config.mixed_precision.parm_dtype",
            "fp32",
            "actor.fsdp_config.mixed_precision.param_dtype",
        ),
        ("env.train.num_envs", 3, "env.train.total_num_envs"),
        ("env.eval.total_num_env", 3, "env.eval.total_num_envs"),
    ],
)
def test_a_key_that_rlinf_does_not_know_is_named_with_the_one_that_was_meant(key, value, meant):
    assert said({key: value}) == [f"nothing in RLinf reads {key}={value!r}; did you mean {meant}?"]


def test_a_block_that_rlinf_does_not_know_is_named_once():
    assert said({"actor.fsdp_config.mixed_precison": {"param_dtype": "fp32", "reduce_dtype": "fp32"}}) == [
        "nothing in RLinf reads actor.fsdp_config.mixed_precison; did you mean "
        "actor.fsdp_config.mixed_precision?"
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"actor.optim.adam_beta1": 0.9, "actor.fsdp_config.use_orig_params": True},
        {"env.train.init_params": {"qqzz": 3}},  # arguments of a simulator
        {"env.train.task_config": {"qqzz": {"a": 1}}},
        {"env.train.env_class": "mine", "env.train.qqzz": 3},
        {"actor.model.model_type": "emulated", "actor.model.qqzz": 3},
        {"mine": {"qqzz": 3}},
        {"actor.optim.qqzz": None},
    ],
)
def test_what_rlinf_reads_or_a_package_may_read_is_not_named(changes):
    assert said(changes) == []


def test_a_key_that_another_one_refers_to_is_not_named():
    assert said({"env.train.qqzz": "/w"}, {"env": {"train": {"vae": "${env.train.qqzz}/vae"}}}) == []
    assert said({"env.train.qqzz": "/w"}, {"env": {"train": {"qqzz": "/w"}}}) != []


def test_a_key_that_the_users_extension_module_reads_is_not_named(monkeypatch, tmp_path):
    (tmp_path / "their_readers").mkdir()
    (tmp_path / "their_readers" / "__init__.py").write_text("raise RuntimeError('only read')")
    (tmp_path / "their_readers" / "deep.py").write_text("def read(cfg):\n    return cfg.env.train.qqzz\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RLINF_EXT_MODULE", "their_readers.deep")
    assert said({"env.train.qqzz": 3}) == []
    assert said({"env.train.qqzy": 3}) == ["nothing in RLinf or their_readers.deep reads env.train.qqzy=3"]
    # As in a run of which no class is ours.
    monkeypatch.setenv("RLINF_EXT_MODULE", "rlinf_async.plugin")
    monkeypatch.setenv("RLINF_ASYNC_EXT_MODULE", "their_readers.deep")
    assert said({"env.train.qqzz": 3}) == []


def test_the_sources_are_read_for_undecided_keys_only(monkeypatch):
    monkeypatch.setattr(
        strange_keys_module, "_words_of_rlinf", lambda: pytest.fail("RLinf's sources are read")
    )
    assert said({"env.train.total_num_envs": 3, "cluster.component_placement.env": 0}) == []


def test_a_component_that_no_run_has_is_named():
    (remark,) = said({"cluster.component_placement.qqzz": 0})
    assert remark.startswith(
        "cluster.component_placement.qqzz places nothing: the components of a run are env,"
    )


def test_the_meant_keys_have_rows_and_the_others_are_read_from_no_config_of_rlinfs():
    assert all(TABLE.find(meant) for meant in OTHER_WORDS.values())
    assert all(key.rpartition(".")[0] in DEPTHS for key in OTHER_WORDS)
    text = "\n".join(path.read_text() for path in sources_of("rlinf").root.rglob("*.py"))
    for section, name in (key.split(".")[1:] for key in OTHER_WORDS):
        assert f"{section}.{name}" not in text
        assert f'{section}.get("{name}"' not in text
