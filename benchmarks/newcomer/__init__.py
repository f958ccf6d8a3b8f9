"""A newcomer's first commands, exactly as the README gives them, and the time that they take."""
