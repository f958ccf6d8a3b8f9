"""Python imports this when it starts: on `PYTHONPATH`, it adds openpi's sources and makes nothing tiny.

`make demo-vla` runs so where `make setup-vla` has made its folder. Nothing heavy may be imported here, as in
`site/`.
"""

from tests.vla import imports  # noqa: F401  # torchvision's operators
from tests.vla.sources import on_path

on_path("openpi", "src")
