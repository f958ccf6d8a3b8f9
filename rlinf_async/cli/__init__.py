"""The command line. This module imports nothing that takes time."""

from rlinf_async.cli.first_signals import answering_signals


def app() -> None:
    """Run the command `rlinf-async`."""
    # A second or more: whoever changes their mind meanwhile is answered, too.
    with answering_signals():
        from rlinf_async.cli.application import app as application
    application()
