"""The env, inference and learner loops, and the ports that a host fills. asyncio, no framework."""
