"""How fast a schedule is, and how far from the best possible: real workers, emulated service times."""
