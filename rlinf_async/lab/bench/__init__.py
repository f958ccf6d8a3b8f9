"""The speed of a schedule, and its distance from the best possible: real workers, emulated service times."""
