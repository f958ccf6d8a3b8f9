"""The recipes of docs/placement.md: each is explained, and needs the memory that it says."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf_async.compose import compose_config
from rlinf_async.core.request_channels import channel_nodes
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.hosts.host import AssumedCluster
from rlinf_async.hosts.rlinf.explain import explain
from rlinf_async.hosts.rlinf.placement import Machines, assignments, world_sizes

PAGE = (Path(__file__).parents[1] / "docs" / "placement.md").read_text()
RECIPES = dict(re.findall(r"^```yaml\n# (.*?)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
COMMAND = re.search(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL).group(1)
CONFIG, GPUS, GPU_MEMORY = (
    re.search(rf"{option} (\w+)", COMMAND).group(1) for option in ("-n", "--gpus", "--gpu-memory")
)


def facts_of(recipe, examples):
    """What `explain` says of RLinf's config with the keys of a recipe in the place of its own."""
    return explained(dict(flat(yaml.safe_load(recipe))), examples)


def explained(keys, examples):
    """What `explain` says of RLinf's config with `keys` in the place of its own."""
    keys = dict(keys)
    placement = keys.pop("cluster.component_placement")
    parts = ",".join(f"{part}:'{where}'" for part, where in placement.items())
    overrides = [
        "~cluster.component_placement",
        f"+cluster.component_placement={{{parts}}}",
        *(f"++{key}={value}" for key, value in keys.items()),
    ]
    cluster = AssumedCluster(nodes=keys["cluster.num_nodes"], gpus=int(GPUS), gpu_memory=float(GPU_MEMORY))
    return explain(compose_config(CONFIG, overrides, examples), cluster)


def flat(tree, path=""):
    """The keys of a tree with their values; the blocks of a placement stay together."""
    for name, value in tree.items():
        if isinstance(value, dict) and name != "component_placement":
            yield from flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def test_every_recipe_needs_the_memory_that_the_table_says(examples):
    assert len(RECIPES) >= 7
    for name, recipe in RECIPES.items():
        facts = facts_of(recipe, examples)
        memory = facts["memory"]
        assert memory["parameters"] is None  # the numbers are per billion
        sums = ", ".join(f"{one['gpus']} of {one['total'] / 1e9:g}" for one in memory["per_gpu"])
        ranks = " / ".join(str(facts["ranks"][part]) for part in ("env", "inference", "learner"))
        row = f"| {name} | {ranks} | {sums} |"
        assert row in PAGE, row


def test_the_command_is_the_recipe_that_it_is_said_to_be(examples):
    overrides = [word for word in shlex.split(COMMAND) if re.match(r"[~+a-z][\w.]*(=|$)", word)][2:]
    cluster = AssumedCluster(nodes=2, gpus=int(GPUS), gpu_memory=float(GPU_MEMORY))
    assert explain(compose_config(CONFIG, overrides, examples), cluster) == facts_of(RECIPES["1:1"], examples)


def spans(first, length, gpus):
    """`length` ranks of each node, from its rank `first` on."""
    return ",".join(f"{start}-{start + length - 1}" for start in range(first, gpus, int(GPUS)))


def placed(name, gpus):
    """The ranks of `env`, `rollout` and `actor` in a recipe on `gpus` GPUs, as the page puts it in words."""
    if name.startswith("collocated"):
        return dict.fromkeys(("env", "rollout", "actor"), "all")
    first, second = (spans(start, int(GPUS) // 2, gpus) for start in (0, int(GPUS) // 2))
    if name == "hybrid":
        return {"env": first, "rollout": second, "actor": "all"}
    if name == "local loops":
        return {"env": first, "rollout": first, "actor": second}
    parts = int(name.split(":")[0])
    most = gpus * parts // (parts + 1)
    return {"env": f"0-{most - 1}", "rollout": f"0-{most - 1}", "actor": f"{most}-{gpus - 1}"}


def scaled(name, gpus):
    """The keys of a recipe on `gpus` GPUs."""
    keys = dict(flat(yaml.safe_load(RECIPES[name])))
    ranks = world_sizes({"component_placement": placed(name, gpus)}, Machines(nodes=gpus, gpus=1, named=True))
    return {
        **keys,
        "cluster.component_placement": placed(name, gpus),
        "cluster.num_nodes": gpus // int(GPUS),
        "env.train.total_num_envs": 8 * ranks["env"],
        "actor.micro_batch_size": min(128, 2048 // ranks["actor"]),
    }


SCALE = re.search(r"^## From 8 to 256 GPUs\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL).group(1)
ROWS = {
    name: (memory, channels)
    for name, *_, memory, channels in (
        line.strip("| ").split(" | ") for line in SCALE.splitlines() if line.startswith("| ")
    )
}
"""The memory and the request channels of each recipe, as the page says them."""


@pytest.mark.parametrize(
    "number", [0, pytest.param(1, marks=pytest.mark.nightly), pytest.param(2, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_on_more_gpus_needs_the_memory_and_channels_that_the_table_says(name, number, examples):
    memory, channels = ROWS[name]
    gpus = ((24, 48, 192) if name == "2:1" else (8, 64, 256))[number]
    facts = explained(scaled(name, gpus), examples)
    totals = [f"{kind['total'] / 1e9:.3g}" for kind in facts["memory"]["per_gpu"]]
    said = memory.split(", then ")
    assert " and ".join(totals) == said[min(number, len(said) - 1)]
    machines = Machines(nodes=gpus // int(GPUS), gpus=int(GPUS))
    places = assignments({"component_placement": placed(name, gpus)}, machines)
    env, inference = (
        [f"node {resources[0][1] // int(GPUS)}" for resources in places[part]] for part in ("env", "rollout")
    )
    assert len(channel_nodes("node 0", env=env, inference=inference)) == int(channels.split(", ")[number])


def test_a_local_loop_begins_and_ends_on_its_node(examples):
    facts = facts_of(RECIPES["local loops"], examples)
    nodes, ranks = facts["cluster"]["nodes"], facts["ranks"]
    parts = yaml.safe_load(RECIPES["local loops"])["cluster"]["component_placement"]
    # A free simulator would collect for any node.
    assert not any("a free simulator" in remark for remark in facts["remarks"])
    for text in parts.values():
        first = [int(span.split("-")[0]) // int(GPUS) for span in text.split(",")]
        assert first == list(range(nodes))
    plan = ShardPlan(
        total_envs=facts["shards"]["total"] * facts["shards"]["environments_each"],
        env_workers=ranks["env"],
        inference_ranks=ranks["inference"],
        learner_ranks=ranks["learner"],
        shards_per_worker=facts["shards"]["per_env_worker"],
    )
    for shard in range(plan.shards):
        node = shard * nodes // plan.shards
        assert plan.learner_rank(shard, 0) * nodes // ranks["learner"] == node
