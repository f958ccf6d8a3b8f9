"""The host without work: the same loops and brokers on virtual time, where only service times are models."""
