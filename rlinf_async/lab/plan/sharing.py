"""The times that calls in one process would have taken one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def unshared(began: Sequence[float], ended: Sequence[float]) -> npt.NDArray[np.float64]:
    """Seconds of each call by itself, where calls that overlapped had equal shares of their process.

    Python runs one thread at a time, so that `n` simulators that step in threads at the same time take up to
    `n` times as long as one. Together these seconds are the time in which any call was under way.

    Args:
        began: When each call began, in seconds.
        ended: When each ended, in the same order.
    """
    moments = np.concatenate([began, ended])
    order = np.argsort(moments, kind="stable")
    changes = np.concatenate([np.ones(len(began)), -np.ones(len(ended))])[order]
    at, under_way = moments[order], np.cumsum(changes)[:-1]
    shares = np.divide(np.diff(at), under_way, out=np.zeros(len(under_way)), where=under_way > 0)
    served = np.concatenate([[0.0], np.cumsum(shares)])
    result: npt.NDArray[np.float64] = np.interp(ended, at, served) - np.interp(began, at, served)
    return result
