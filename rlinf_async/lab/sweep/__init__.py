"""One config under several settings of the three levels: run in turn, measured and compared."""
