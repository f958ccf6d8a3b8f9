"""The parts that all hosts share, independent of any framework."""
