#!/usr/bin/env bash
# robosuite 1.4.0: a simulator state, set again, does not bring back where fixtures stand.
#
# `sim.get_state().flatten()` and `sim.set_state_from_flattened` are how recorded initial states are kept and set, in
# robomimic's data and in LIBERO's benchmark. The state holds positions and velocities of joints. A fixture without a
# joint of its own, such as the door frame of the Door task, is placed by a sampler at every reset, which writes into
# the *model* (`body_pos`, `body_quat`). So one state that is set after resets with different seeds gives scenes
# whose states are equal number by number and whose fixtures stand elsewhere.
# LIBERO (hf-libero 0.1.4) has it too: cabinet, stove and wine rack of one recorded initial state stand up to 1.8 cm
# elsewhere by the seed; its files of meshes are on no package index, so that it is not run here.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
# robosuite does not name all that it imports, and names an OpenCV that wants a screen's libraries.
"$folder/env/bin/python" -m pip install -qq mujoco==3.3.0 numba==0.68.1 numpy==2.4.6 scipy==1.17.1 pillow==13.0.0 \
    opencv-python-headless==5.0.0.93 termcolor==3.3.0
"$folder/env/bin/python" -m pip install -qq --no-deps robosuite==1.4.0

cat > "$folder/seen.py" << 'PY'
import numpy as np
import robosuite


def door(seed, state=None):
    np.random.seed(seed)
    env = robosuite.make(
        "Door", robots="Panda", has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False
    )
    env.reset()
    if state is not None:
        env.sim.set_state_from_flattened(state)
        env.sim.forward()
    return env.sim.get_state().flatten(), env.sim.data.body_xpos[env.sim.model.body_name2id("Door_main")].copy()


state, place = door(0)
same_state, same_place = door(0, state)
other_state, other_place = door(1, state)
print("seed 0 again: states equal", np.array_equal(same_state, state), "door moved", not np.allclose(same_place, place))
moved_mm = 1000 * np.linalg.norm(other_place - place)
print("seed 1: states equal", np.array_equal(other_state, state), "door moved by more than 5 mm", bool(moved_mm > 5))
PY
"$folder/env/bin/python" "$folder/seen.py" 2> "$folder/errors" | tee "$folder/seen" || { cat "$folder/errors"; exit 1; }

diff "$folder/seen" - << 'SEEN'
seed 0 again: states equal True door moved False
seed 1: states equal True door moved by more than 5 mm True
SEEN
echo "as described"
