"""What every process of a run imports when it starts."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_starting_a_process_does_not_import_torch():
    path = os.pathsep.join([str(ROOT / "tests" / "vla" / "site"), str(ROOT)])
    code = "import sys; print(sys.modules['tests.vla.tiny_openpi'].__name__, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["tests.vla.tiny_openpi", "False"]
