"""The wire of a run, simulated: its own code over a network, processes and memory that fail by a seed.

All processes of a run share a virtual event loop (`processes`), which takes no time and asks the system for
nothing. What is replaced is what the product asks the world for: the module `socket` and the connecting
calls of asyncio's loop (`network`), Ray's handles, nodes and deaths (`cluster`), the driver's wait
(`schedule`). Connections, handshakes, request channel, coordinator, revivals, memory and weight files,
mirrors and loops are the product's. Environments, policies and learners check what they are given (`parts`);
`faults` has what befalls them.

Checkpoints have schedules of their own (`saving`), on a disk that is full and crashes (`disk`).

`python -m tests.wire.simulation SEED...` replays schedules; `--from A --to B` tries many; `--disk` takes
those of checkpoints.
"""
