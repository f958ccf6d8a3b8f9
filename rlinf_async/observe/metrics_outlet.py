"""Writes metrics to loggers, which may fail without ending the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from rlinf_async.core.failures import in_words

Logger = TypeVar("Logger")
LONGEST_REST = 64
"""The most batches that a failed logger is left out for. The number is one at first, and doubles with every
failed try."""


class MetricsOutlet(Generic[Logger]):
    """Passes metrics to a logger. A failing logger is reported once, left out for some batches, and made
    again.

    Metrics that the logger misses are in `metrics.jsonl`.
    """

    def __init__(
        self,
        make: Callable[[], Logger],
        *,
        write: Callable[..., object],
        close: Callable[..., object],
        drop: Callable[[Logger], object] | None = None,
        say: Callable[[str], None],
    ) -> None:
        """`make` makes a logger, `write(logger, batch, metrics, **keywords)` writes, `close` closes it at the
        end.

        `drop` (default: `close`) is called with a logger that has failed; its errors are ignored.
        """
        self._make, self._write, self._close, self._drop, self._say = make, write, close, drop or close, say
        self._logger: Logger | None = make()
        self._first_missed: int | None = None
        """The first batch that the logger has missed since it failed; None if it works."""
        self._rest, self._again_at = 1, 0

    def log(self, batch: int, metrics: Mapping[str, Any], **keywords: Any) -> None:
        """Write the metrics of `batch`; an error of the logger is only reported."""
        if self._first_missed is not None and batch < self._again_at:
            return
        try:
            if self._logger is None:
                self._logger = self._make()
            self._write(self._logger, batch, metrics, **keywords)
        except Exception as error:  # noqa: BLE001 - a full disk, an unreachable server, a bug in the logger
            self._note_failure(batch, error)
            return
        if self._first_missed is not None:
            self._say(
                f"metrics loggers write again from batch {batch}; metrics.jsonl has the batches between"
            )
            self._first_missed, self._rest = None, 1

    def close(self, **keywords: Any) -> None:
        """Close the logger; an error is only reported, as everything is trained by then."""
        logger, self._logger = self._logger, None
        if logger is None:
            return
        try:
            self._close(logger, **keywords)
        except Exception as error:  # noqa: BLE001 - as in `log`
            self._discard(logger)
            self._say(
                f"a metrics logger could not be closed ({in_words(error)}); metrics.jsonl has everything"
            )

    def _note_failure(self, batch: int, error: Exception) -> None:
        if self._first_missed is None:
            self._first_missed = batch
            self._say(
                f"a metrics logger has failed at batch {batch} ({in_words(error)}); the run goes on and "
                "tries it again, and metrics.jsonl has all metrics"
            )
        else:
            self._rest = min(2 * self._rest, LONGEST_REST)
        self._again_at = batch + 1 + self._rest
        logger, self._logger = self._logger, None
        if logger is not None:
            self._discard(logger)

    def _discard(self, logger: Logger) -> None:
        try:
            self._drop(logger)
        except Exception:  # noqa: BLE001 - the logger's failure was reported before
            return
