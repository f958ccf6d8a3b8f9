"""Say what a run would be like, before it runs."""
