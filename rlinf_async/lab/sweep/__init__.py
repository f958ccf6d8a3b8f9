"""Run one config under several settings of the three levels in turn, and compare them."""
