"""Asynchronous RL post-training for vision-language-action models, as a plugin.

Read the package from the bottom up:

* ``core``        decisions without I/O: admission, buffer, batching, sharding, streaming, objectives
* ``loops``       the env, inference and learner loops (asyncio), and the ports that a host fills
* ``config``      the ``async`` block of a run, validated when it is built
* ``simulators``  real simulators as plain batches of environments; ``policies`` as plain modules
* ``hosts``       one package per framework, the only place that imports it
* ``plugin``      ``register()``, which entry points, Hydra and ``RLINF_EXT_MODULE`` call
* ``cli``         ``rlinf-async train | explain | doctor``

This module imports nothing.
"""

__version__ = "0.1.0"
