"""A client of RLinf like Isaac Lab: a launcher, an extension module, a vectorised simulator and one YAML.

Written after `isaaclab train --rl_library rlinf` and `isaaclab_contrib.rl.rlinf.extension`
(isaac-sim/IsaacLab, as of commit 270ff3c): Hydra composes the YAML without a command line, so that the block
stands in it; the extension reads the same file by itself and registers tasks into RLinf's own registry;
RLinf's own `IsaaclabBaseEnv` steps the simulator, in a process that it spawns. Only the simulator is another:
Isaac Sim is not here. Nothing in this folder knows of rlinf-async.
"""
