"""`rlinf-async` whose `--restarts` starts runs with forked workers, as the tests' own runs are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf_async import supervise as supervising
from rlinf_async.cli import app

supervise = supervising.supervise

FORKED_WORKERS = Path(__file__).with_name("forked_workers.py")


def supervise_forking(command: Sequence[str], **options: Any) -> int:
    python, *arguments = command
    return supervise([python, str(FORKED_WORKERS), *arguments], **options)


if __name__ == "__main__":
    supervising.supervise = supervise_forking
    app()
