"""What `rlinf-async bench` has measured, and the demo on both hosts."""
