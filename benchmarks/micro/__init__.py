"""What the machinery costs by itself: `python -m benchmarks.micro --help`."""
