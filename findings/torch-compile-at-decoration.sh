#!/usr/bin/env bash
# torch 2.13.0: to decorate a function with `torch.compile` loads torch's compiler, though nothing is compiled.
#
# `torch.compile` is known to compile in the first call. The decorator itself imports torch._dynamo, torch._inductor
# and what they need, some 1,400 modules, and takes longer than `import torch`. So a module with one decorated function
# costs every process that imports it seconds, whether or not the function is ever called.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -qq --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
"$folder/env/bin/python" -m pip install -qq numpy==2.4.6

cat > "$folder/seen.py" << 'PY'
import sys
import time

import torch

before, began = set(sys.modules), time.process_time()


@torch.compile
def double(number):
    return 2 * number


took, loaded = time.process_time() - began, set(sys.modules) - before
print(f"loaded by the decorator: {len(loaded)} modules in {took:.1f} s of CPU time")
print("the compiler is loaded:", {"torch._dynamo", "torch._inductor.compile_fx"} <= loaded)
sys.exit(0 if "torch._inductor.compile_fx" in loaded and len(loaded) > 500 else 1)
PY
"$folder/env/bin/python" "$folder/seen.py"
