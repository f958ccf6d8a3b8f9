"""A small RLinf config as plain data, from which a test departs by dotted keys."""

from copy import deepcopy

BASE = {
    "cluster": {"num_nodes": 1, "component_placement": {"env": 0, "rollout": 0, "actor": 0}},
    "runner": {"task_type": "embodied", "max_epochs": 10, "max_steps": -1, "val_check_interval": -1},
    "algorithm": {"adv_type": "gae", "loss_type": "actor_critic", "update_epoch": 2},
    "env": {
        "train": {
            "env_type": "libero",
            "total_num_envs": 8,
            "rollout_epoch": 1,
            "group_size": 1,
            "max_steps_per_rollout_epoch": 20,
        },
        "eval": {"env_type": "libero", "total_num_envs": 4, "group_size": 1},
    },
    "rollout": {"pipeline_stage_num": 1},
    "actor": {
        "training_backend": "fsdp",
        "micro_batch_size": 4,
        "global_batch_size": 16,
        "seed": 3,
        "model": {"model_type": "mlp_policy", "num_action_chunks": 5},
    },
    "async": {"mode": "full"},
}

SYNCER = {"weight_syncer": {"type": "bucket", "bucket": {"bucket_size": 536870912}}}
"""The block without which RLinf's workers end."""
ONE_EACH = {"env": 1, "rollout": 1, "actor": 1}


def config(changes=None):
    """`BASE`, with `changes` by dotted key."""
    made = deepcopy(BASE)
    for key, value in (changes or {}).items():
        *path, last = key.split(".")
        branch = made
        for name in path:
            branch = branch.setdefault(name, {})
        branch[last] = value
    return made
