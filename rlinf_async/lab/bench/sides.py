"""The hosts that a bench can run under."""

from __future__ import annotations

from collections.abc import Mapping

from rlinf_async.lab.bench.side import Side
from rlinf_async.lab.bench.under_rlinf import UnderRLinf
from rlinf_async.lab.bench.under_verl import UnderVerl

SIDES_BY_HOST: Mapping[str, Side] = {"rlinf": UnderRLinf(), "verl": UnderVerl()}
"""The sides by the names of their hosts."""
