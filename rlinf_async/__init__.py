"""Asynchronous RL post-training for vision-language-action models, as a plugin.

Read the package from the bottom up:

* ``core``         deciding only: admission, buffer, batching, sharding, streaming, objectives
* ``config``       the ``async`` block of a run, validated when it is built
* ``observe``      spans, meters, the status of a run, its directory
* ``loops``        the env, inference and learner loops (asyncio), and the ports that a host fills
* ``wire``         the direct way between processes: connections, payloads, memory that both map
* ``ray_runtime``  what any host on Ray needs: processes, weights, checkpoints, the driver
* ``hosts``        one package per framework, the only place that imports it; common parts beside
* ``plugin``       ``register()``, which entry points, Hydra and ``RLINF_EXT_MODULE`` call
* ``doctor``       checks of the installation and the machine
* ``supervise``    starts a command that has failed again, from its newest checkpoint
* ``cli``          the command ``rlinf-async``
* ``lab``          what no training run needs: reports, traces, plans, comparisons, demonstrations

This module imports nothing.
"""

__version__ = "0.1.0"
