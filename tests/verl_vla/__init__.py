"""verl-vla's own classes in this package; `make test-verl-vla` gives them a place on the path."""
