#!/usr/bin/env bash
# torch 2.13.0: `from torch.distributed.tensor import DTensor` imports SymPy.
#
# `import torch` leaves SymPy out. The package of sharded tensors needs one function of
# `torch.fx.experimental.symbolic_shapes`, which imports all of SymPy: with it, some 500 modules, half the CPU time of
# `import torch` itself, and 40 MB. So a module that names DTensor in an annotation or in `isinstance` costs every
# process that imports it, whether or not a tensor is ever sharded.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -qq --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
"$folder/env/bin/python" -m pip install -qq numpy==2.4.6

cat > "$folder/seen.py" << 'PY'
import resource
import sys
import time


def memory_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


began = time.process_time()
import torch

torch_s, torch_mb, before = time.process_time() - began, memory_mb(), set(sys.modules)
began = time.process_time()
from torch.distributed.tensor import DTensor

took, loaded = time.process_time() - began, set(sys.modules) - before
sympy = [name for name in loaded if name.partition(".")[0] == "sympy"]
print(f"import torch: {torch_s:.1f} s of CPU time, {torch_mb:.0f} MB; SymPy is loaded: {'sympy' in before}")
print(f"DTensor: {took:.1f} s, {memory_mb() - torch_mb:.0f} MB more; {len(loaded)} modules, {len(sympy)} of SymPy")
sys.exit(0 if "sympy" not in before and len(sympy) > 200 else 1)
PY
"$folder/env/bin/python" "$folder/seen.py"
