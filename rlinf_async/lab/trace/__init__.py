"""From what every process has recorded to one file that Perfetto opens."""
