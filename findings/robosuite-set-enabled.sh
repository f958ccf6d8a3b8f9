#!/usr/bin/env bash
# robosuite 1.4.0: a camera that is switched off and on again shows black first, and then late pictures.
#
# `Observable.set_enabled(False)` and `set_enabled(True)` look like a way to leave out pictures that nobody looks
# at. An observable has a clock, and samples once in a control step, at its last physics step. Switching it sets the
# clock and its value back. So after a control step for which a camera has been switched on again
#   - the first picture is all zeros, and
#   - every later one is sampled at the first physics step, so that it is nearly one control step old.
# Seen here on the Lift task, with every third step drawn, beside a run that draws all steps. What is exact: leave the
# observable on, and have its sensor return the picture that it has.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
# robosuite does not name all that it imports, and names an OpenCV that wants a screen's libraries.
"$folder/env/bin/python" -m pip install -qq mujoco==3.3.0 numba==0.68.1 numpy==2.4.6 scipy==1.17.1 pillow==13.0.0 \
    opencv-python-headless==5.0.0.93 termcolor==3.3.0
"$folder/env/bin/python" -m pip install -qq --no-deps robosuite==1.4.0
export MUJOCO_GL=${MUJOCO_GL:-osmesa}
export PYOPENGL_PLATFORM=${PYOPENGL_PLATFORM:-$MUJOCO_GL}

cat > "$folder/seen.py" << 'PY'
import numpy as np
import robosuite

CHUNK, CHUNKS, CAMERA = 3, 3, "agentview"


def play(switching):
    np.random.seed(0)
    env = robosuite.make(
        "Lift",
        robots="Panda",
        has_renderer=False,
        use_camera_obs=True,
        camera_names=CAMERA,
        camera_heights=64,
        camera_widths=64,
        control_freq=20,
    )
    env.reset()
    actions, pictures = np.random.default_rng(0), []
    for step in range(CHUNK * CHUNKS):
        if switching:
            env._observables[f"{CAMERA}_image"].set_enabled(step % CHUNK == CHUNK - 1)
        observation, *_ = env.step(actions.uniform(-0.5, 0.5, env.action_dim))
        picture = observation.get(f"{CAMERA}_image")
        pictures.append(None if picture is None else picture.astype(int))
    env.close()
    return pictures


every, switched = play(False), play(True)
ends = range(CHUNK - 1, CHUNK * CHUNKS, CHUNK)
print("brightness:", *(("black" if not switched[end].any() else "lit") for end in ends))
for end in ends[1:]:
    distances = [np.abs(switched[end] - picture).mean() for picture in every]
    print(f"the picture of step {end} is nearest to that of step {int(np.argmin(distances))}")
PY
"$folder/env/bin/python" "$folder/seen.py" 2> "$folder/errors" | tee "$folder/seen" || { cat "$folder/errors"; exit 1; }

diff "$folder/seen" - << 'SEEN'
brightness: black lit lit
the picture of step 5 is nearest to that of step 4
the picture of step 8 is nearest to that of step 7
SEEN
echo "as described"
