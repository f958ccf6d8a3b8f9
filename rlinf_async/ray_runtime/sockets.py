"""Checks that Ray can make its sockets below its folder: a path may have 107 bytes, of which Ray takes 68."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

LONGEST_PATH = 107
"""Bytes of the path of a socket on Linux."""
LONGEST_NAME = len("/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Bytes that Ray puts after the folder, for the largest number of a process."""
LONGEST_FOLDER = LONGEST_PATH - LONGEST_NAME
SHORT_FOLDER_REMEDY = "export RAY_TMPDIR=/tmp"


def folder_of_ray(environ: Mapping[str, str]) -> tuple[str, str]:
    """The folder below which a Ray that starts here puts its files, and the variable that says so."""
    for variable in ("RAY_TMPDIR", "TMPDIR"):
        if variable in environ:
            return environ[variable], variable
    return "/tmp", "TMPDIR"


def misplaced_sockets(environ: Mapping[str, str]) -> str | None:
    """Why a Ray that starts here could not make its sockets; None if it can. Ray says it in 70 lines."""
    folder, variable = folder_of_ray(environ)
    if not folder.isascii():
        return f"{variable}={folder} has letters that are not ASCII, which Ray cannot read"
    size = len(folder.rstrip("/").encode())
    if size > LONGEST_FOLDER:
        return (
            f"{variable}={folder} has {size} characters, where Ray's sockets leave room for {LONGEST_FOLDER}"
        )
    if Path(folder).exists() and not Path(folder).is_dir():
        return f"{variable}={folder} is no directory, and Ray puts its files there"
    return None
