"""Test that torch keeps a process to its share of a GPU, and that a run tells why an allocation has failed.

    python -m benchmarks.gpu.shares --json shares.json

There are two cases, each with a new process that allocates until torch fails. In `share` it is alone, so that
its limit has to stop it. In `full` another process without a limit already holds most of the GPU, as
simulators may.

The table has the share, the bytes that torch held, the reason that a run would give for the end of the
process, and the bytes on the GPU besides torch's: in `share` these are the process's context; the shares
assume 1 GB for it. The last columns are the bytes of the other process, and the sentence of a run's watch
about them.

Without a GPU (`--device cpu`) only `share` runs, on a stand-in for a GPU.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from rlinf_async.core.gpu_shares import CONTEXT_BYTES, held_by_others
from rlinf_async.lab.table import markdown
from rlinf_async.ray_runtime.driver.gpu_shares import is_full
from rlinf_async.ray_runtime.processes.gpu_share import CudaMemory, StandInMemory

SHARE, FILLED = 0.3, 0.8
"""Shares of the GPU: of the process with a limit, and of the other process."""
PIECES_PER_GPU = 200
"""An allocation is this part of a GPU."""


def until_it_fails(device: str) -> dict[str, Any]:
    """Keep this process to its share, allocate until torch fails, and return the measurements."""
    memory = StandInMemory() if device == "cpu" else CudaMemory(torch.device("cuda", 0))
    share, piece = int(SHARE * memory.total), memory.total // PIECES_PER_GPU
    memory.limit(share)
    held: list[torch.Tensor] = []
    while True:
        use = memory.use()
        try:
            if isinstance(memory, StandInMemory):
                memory.take(piece)
            else:
                held.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            return {
                "share": share,
                "held": use.reserved,
                "piece": piece,
                "stopped_by": "full" if is_full(str(error)) else "share",
                "others": held_by_others({"learner rank 0": use}),
                "beside": use.used - use.reserved,
                "message": str(error),
            }


def _answer(connection: Connection, device: str) -> None:
    connection.send(until_it_fails(device))


def _fill(connection: Connection) -> None:
    total = torch.cuda.mem_get_info(0)[1]
    tensor = torch.empty(int(FILLED * total), dtype=torch.uint8, device="cuda")
    connection.send(tensor.numel())
    connection.recv()


@contextmanager
def _process(function: Any, *arguments: object) -> Iterator[Connection]:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=function, args=(theirs, *arguments))
    process.start()
    theirs.close()  # so that a process that dies ends our wait with EOFError
    try:
        yield ours
    finally:
        ours.close()
        process.terminate()
        process.join()


def measured(device: str) -> dict[str, dict[str, Any]]:
    """Return the row of each case."""
    with _process(_answer, device) as alone:
        found = {"share": alone.recv()}
    if device != "cpu":
        with _process(_fill) as other:
            filled = other.recv()
            with _process(_answer, device) as limited:
                found["full"] = {**limited.recv(), "filled": filled}
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table with a line per case."""
    lines = [
        [
            f"`{case}`",
            *(f"{row[name] / 1e9:.3g}" for name in ("share", "held")),
            row["stopped_by"],
            *(f"{row.get(name, 0) / 1e9:.3g}" for name in ("beside", "filled", "others")),
        ]
        for case, row in found.items()
    ]
    header = ["case", "share, GB", "torch held", "stopped by", "beside torch", "others held", "as watched"]
    return markdown(header, lines)


def main(
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    json_file: Annotated[Path | None, typer.Option("--json", help="File for device and rows.")] = None,
) -> None:
    """Run the cases, and print the reason for the end of each."""
    if device not in ("cuda", "cpu"):
        raise typer.BadParameter(f"device={device} must be cuda or cpu")
    found = measured(device)
    if json_file is not None:
        name = torch.cuda.get_device_name() if device == "cuda" else "stand-in"
        facts = {"device": name, "torch": torch.__version__, "context_bytes": CONTEXT_BYTES, "rows": found}
        json_file.write_text(json.dumps(facts, indent=1) + "\n")
    print(table(found))
    wrong = [case for case, row in found.items() if row["stopped_by"] != case]
    if wrong:
        raise SystemExit(f"{', '.join(wrong)}: stopped by something else")


if __name__ == "__main__":
    typer.run(main)
