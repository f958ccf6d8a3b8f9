"""The package `rlinf_async.configs` of a checkout: its files are in the top-level folder `configs`.

A wheel has the folder here instead. So Python and Hydra (`pkg://rlinf_async.configs`) find the same package
in both, without a symbolic link, which archives and some file systems lose.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_folder = Path(__file__).parents[1] / "configs"
_spec = spec_from_file_location(__name__, _folder / "__init__.py", submodule_search_locations=[str(_folder)])
assert _spec is not None
# `import` returns the module that is in sys.modules after this file has run.
sys.modules[__name__] = module_from_spec(_spec)
