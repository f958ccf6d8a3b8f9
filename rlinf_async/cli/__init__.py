"""The command line, `app`. This module imports nothing that takes time."""

from typing import TYPE_CHECKING, Any

from rlinf_async.termination import answering_signals

if TYPE_CHECKING:
    from rlinf_async.cli.application import app as app


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The import takes a second or more: Ctrl-C meanwhile gets an answer, too.
    with answering_signals():
        from rlinf_async.cli.application import app

        return app
