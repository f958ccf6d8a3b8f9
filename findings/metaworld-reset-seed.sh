#!/usr/bin/env bash
# Meta-World 3.1.1: `reset(seed=...)` does not choose the goal of an episode.
#
# Gymnasium has `reset(seed=7)` make an episode that another environment repeats with the same call. In
# `gymnasium.make("Meta-World/MT1", env_name=...)` goals are drawn by a wrapper with a random generator of its own, which
# is made unseeded and which no reset seeds:
#   - two environments that are reset with one seed have different goals, and so have two resets with it;
#   - `gymnasium.make(..., seed=7)` is what seeds it: then the *sequence* of goals is the same in both environments,
#     whatever their resets are seeded with.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -qq metaworld==3.1.1 gymnasium==1.4.0 mujoco==3.3.0 numpy==2.4.6 \
    packaging==26.3 # which gymnasium imports and does not name

cat > "$folder/seen.py" << 'PY'
import warnings

warnings.simplefilter("ignore")
import gymnasium
import metaworld

metaworld.register_mw_envs()


def goals(reset_seed, **made):
    env = gymnasium.make("Meta-World/MT1", env_name="reach-v3", **made)
    found = []
    for _ in range(4):
        env.reset(seed=reset_seed)
        found.append(tuple(env.unwrapped._target_pos))
    env.close()
    return found


once, again = goals(7), goals(7)
print("reset(seed=7): all four goals equal", len(set(once)) == 1, "as in another environment", once == again)
once, again = goals(None, seed=7), goals(11, seed=7)
print("make(seed=7): all four goals equal", len(set(once)) == 1, "as in another environment", once == again)
PY
"$folder/env/bin/python" "$folder/seen.py" 2> "$folder/errors" | tee "$folder/seen" || { cat "$folder/errors"; exit 1; }

diff "$folder/seen" - << 'SEEN'
reset(seed=7): all four goals equal False as in another environment False
make(seed=7): all four goals equal False as in another environment True
SEEN
echo "as described"
