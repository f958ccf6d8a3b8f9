#!/usr/bin/env bash
# Ray 2.60.0: a cluster of `ray start` asks for a token, and `ray.init(address="HOST:PORT")` on the same account sends none.
#
# Any `ray.init()` that starts a cluster of its own leaves a token in ~/.ray/auth_token. From then on `ray start --head` on that
# account asks its clients for it ("Token authentication is enabled for this Ray cluster"). A client that finds the cluster by
# itself (address="auto") sends the token; one that is told the address, as by RAY_ADDRESS, does not, and fails after half a minute
# with "Failed to connect to Ray cluster at ...". RAY_AUTH_MODE=token has it send the token.
set -euo pipefail
folder=$(mktemp -d)
port=$((20000 + RANDOM % 10000))
export HOME="$folder/home" RAY_TMPDIR="$folder/ray" OMP_NUM_THREADS=1
unset RAY_ADDRESS RAY_AUTH_MODE RAY_AUTH_TOKEN RAY_AUTH_TOKEN_PATH
mkdir -p "$HOME" "$RAY_TMPDIR"
head=
trap '[ -z "$head" ] || kill "$head" 2> /dev/null || true; wait; rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -qq ray==2.60.0

cat > "$folder/join.py" << 'PY'
import sys

import ray

try:
    ray.init(**dict(word.split("=") for word in sys.argv[1:]), log_to_driver=False, logging_level="ERROR")
    print("joined")
except ConnectionError:
    print("ConnectionError")
PY
"$folder/env/bin/python" "$folder/join.py" > /dev/null 2>&1 # leaves the token of the account
"$folder/env/bin/ray" start --head --block --port="$port" --num-cpus=1 --include-dashboard=false --temp-dir="$RAY_TMPDIR" > "$folder/head.log" 2>&1 &
head=$!
for _ in $(seq 120); do grep -q "Ray runtime started" "$folder/head.log" && break; sleep 1; done

{
    echo "by address: $("$folder/env/bin/python" "$folder/join.py" "address=127.0.0.1:$port" 2> /dev/null)"
    echo "with RAY_AUTH_MODE=token: $(RAY_AUTH_MODE=token "$folder/env/bin/python" "$folder/join.py" "address=127.0.0.1:$port" 2> /dev/null)"
} | tee "$folder/seen"

diff "$folder/seen" - << 'SEEN'
by address: ConnectionError
with RAY_AUTH_MODE=token: joined
SEEN
echo "as described"
