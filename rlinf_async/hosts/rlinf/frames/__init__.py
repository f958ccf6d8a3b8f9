"""RLinf's environments drawing the last frame of a decision alone, one module for each simulator."""
