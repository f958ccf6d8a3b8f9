"""Asynchronous RL post-training for vision-language-action models, as a plugin.

Read the package from the bottom up:

* ``core``         deciding only: admission, buffer, batching, sharding, streaming, objectives
* ``config``       the ``async`` block of a run, validated when it is built
* ``observe``      spans, meters, the status of a run, its directory
* ``loops``        the env, inference and learner loops (asyncio), and the ports that a host fills
* ``wire``         direct messages between processes: connections, payloads, shared memory
* ``ray_runtime``  common parts of hosts on Ray: processes, weights, checkpoints, the driver
* ``hosts``        one package per framework, the only place that imports it, and their common parts
* ``plugin``       ``register()``, which entry points, Hydra and ``RLINF_EXT_MODULE`` call
* ``doctor``       checks of the installation and the machine
* ``supervise``    restarts a failed command from its newest checkpoint
* ``cli``          the command ``rlinf-async``
* ``lab``          tools that training does not need: reports, traces, plans, comparisons, demonstrations

This module imports nothing.
"""

__version__ = "0.1.0"
