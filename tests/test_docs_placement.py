"""The recipes of docs/placement.md: each is explained, and needs the memory that it says."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf_async.compose import compose_config
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.hosts.host import AssumedCluster
from rlinf_async.hosts.rlinf.explain import explain

PAGE = (Path(__file__).parents[1] / "docs" / "placement.md").read_text()
RECIPES = dict(re.findall(r"^```yaml\n# (.*?)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
COMMAND = re.search(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL).group(1)
CONFIG, GPUS, GPU_MEMORY = (
    re.search(rf"{option} (\w+)", COMMAND).group(1) for option in ("-n", "--gpus", "--gpu-memory")
)


def facts_of(recipe, examples):
    """What `explain` says of RLinf's config with the keys of a recipe in the place of its own."""
    keys = dict(flat(yaml.safe_load(recipe)))
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
