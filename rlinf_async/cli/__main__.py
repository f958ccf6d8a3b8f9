"""`python -m rlinf_async.cli`."""

from rlinf_async.cli import app

app()
