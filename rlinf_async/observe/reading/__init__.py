"""Readers of run directories, which may be damaged or foreign; the processes of a run import none of them."""
