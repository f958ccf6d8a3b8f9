"""What docs/extending.md shows, written into files and installed: for the tests of each framework."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
FILE = re.compile(r'^```\w+ title="(?P<name>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)

PLAY = """
observation, _ = env.reset()
for decision in range(8):
    actions, result = policy.predict_action_batch(env_obs=observation, mode="train")
    scores = policy(forward_inputs=result["forward_inputs"])
    torch.testing.assert_close(scores["logprobs"], result["prev_logprobs"])
    assert scores["values"].shape == result["prev_values"].shape == (8, 1)
    (observation,), rewards, terminations, truncations, (info,) = env.chunk_step(actions)
    assert rewards.shape == terminations.shape == truncations.shape == (8, 2)
assert truncations[:, -1].all()
assert info["episode"]["success_once"].shape == (8,)
"""
"""A rollout of `policy` in `env`, which are the page's."""


def written(directory: Path) -> Path:
    """`directory`, with the files of the page and nothing else."""
    for match in FILE.finditer(PAGE.read_text()):
        path = directory / match["name"]
        path.parent.mkdir(exist_ok=True)
        path.write_text(match["text"])
    return directory


def installed(page: Path, site: Path) -> Path:
    """`site`, where pip has installed the page's package."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(site), "."], check=True, cwd=page)
    return site


def python(page: Path, site: Path, *arguments: str) -> str:
    """The output of Python in the page's directory, where it imports the installed package only."""
    return _output(page, site, "-P", *arguments)


def trained(page: Path, site: Path, *arguments: str) -> str:
    """The output of `rlinf-async train` there."""
    command = Path(sys.executable).with_name("rlinf-async")
    return _output(page, site, str(command), "train", "--config-dir", ".", *arguments)


def _output(page: Path, site: Path, *arguments: str) -> str:
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "RAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=page, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
