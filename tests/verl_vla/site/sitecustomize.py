"""Python imports this when it starts: on `PYTHONPATH`, it adds verl-vla's sources, which no index has.

Nothing heavy may be imported here: Ray's own processes load it as well.
"""

from tests.vla import imports  # noqa: F401  # torchvision's operators
from tests.vla.sources import on_path

on_path("verl-vla", "src")
