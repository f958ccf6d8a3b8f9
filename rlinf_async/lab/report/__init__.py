"""A run, or several, as one page of HTML: what bounds it, who waits for what, and what to change."""
