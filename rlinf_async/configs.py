"""The package `rlinf_async.configs` of a checkout, whose files are the top-level folder `configs`.

A wheel has that folder at this place. Python and Hydra (`pkg://rlinf_async.configs`) find the same package
in both, without a link on disk that archives and some file systems lose.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_folder = Path(__file__).parents[1] / "configs"
_spec = spec_from_file_location(__name__, _folder / "__init__.py", submodule_search_locations=[str(_folder)])
assert _spec is not None
# What `import` returns is what stands in sys.modules when this file has run.
sys.modules[__name__] = module_from_spec(_spec)
