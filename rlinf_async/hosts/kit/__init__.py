"""What the hosts have in common and no framework knows of."""
