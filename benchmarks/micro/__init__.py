"""Cost of single parts of the plugin, without simulators and models: `python -m benchmarks.micro --help`."""
