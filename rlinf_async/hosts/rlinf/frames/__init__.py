"""Makes RLinf's environments render only the last frame of a decision, one module per simulator."""
