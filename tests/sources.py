"""Source trees of other projects: folders or git directories that an environment variable names.

A variable such as `VLA_SOURCES` holds a list with commas between its entries, each of one of these forms:

    openpi=/folder             the tree that is in the folder
    openpi=/git/of/openpi@REF  that commit, tag or branch of a git directory, bare or not
    /git/of/openpi             every commit that a `Source` of the project names and that is in it

What comes out of a git directory is unpacked once, into the temporary directory; nothing is fetched.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HOW = "CONTRIBUTING.md, Sources of other projects"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A tree that tests know."""

    name: str
    ref: str
    """The commit or branch that the tests ran on: what is taken of a git directory named without a ref."""
    holds: tuple[str, ...]
    """The files and folders of it that tests need."""


def places(variable: str, sources: Sequence[Source]) -> dict[str, Path]:
    """The folder of each tree that `variable` names, by the name of the tree, also of names nobody knows.

    In the environment the folders take the place of git directories, so that processes of a run need no git.

    Raises:
        ValueError: an entry is no folder, no git directory, or one without the commit, tag or branch.
    """
    found: dict[str, Path] = {}
    for entry in filter(None, map(str.strip, os.environ.get(variable, "").split(","))):
        try:
            found.update(_places(entry, sources))
        except (ValueError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            raise ValueError(f"{variable}, {entry}: {said}") from None
    if found:
        os.environ[variable] = ",".join(f"{name}={folder}" for name, folder in found.items())
    return found


def _places(entry: str, sources: Sequence[Source]) -> Iterator[tuple[str, Path]]:
    name, _, place = entry.rpartition("=")
    path, _, ref = (place, "", "") if Path(place).is_dir() else place.partition("@")
    folder, known = Path(path).absolute(), {source.name: source for source in sources}
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    if name and not ref and not _is_bare(folder):
        yield name, folder
        return
    if not _is_bare(folder) and not (folder / ".git").exists():
        raise ValueError(f"{folder} is no git directory; name the tree in it: NAME={folder}")
    if name:
        source = known.get(name) or Source(name=name, ref="HEAD", holds=sources[0].holds)
        yield name, _of_git(folder, source, ref or source.ref)
        return
    there = [source for source in sources if _has(folder, source.ref)]
    if not there:
        raise ValueError(f"it has none of {', '.join(f'{each.name} ({each.ref})' for each in sources)}")
    yield from ((source.name, _of_git(folder, source, source.ref)) for source in there)


def _is_bare(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir()


def _has(folder: Path, ref: str) -> bool:
    command = ("git", "-C", folder, "cat-file", "-e", f"{ref}^{{commit}}")
    return subprocess.run(command, capture_output=True).returncode == 0


def _of_git(folder: Path, source: Source, ref: str) -> Path:
    command = ("git", "-C", folder, "rev-parse", "--verify", f"{ref}^{{commit}}")
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def fill(place: Path) -> None:
        archive = place / "archive.tar"
        command = ("git", "-C", folder, "archive", "--output", archive, commit, "--", *source.holds)
        subprocess.run(command, capture_output=True, text=True, check=True)
        unpack(archive, place)
        archive.unlink()

    return made_once(f"{source.name}-{commit}", fill)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive; with Python's own filter where it has one, which 3.11.0 to 3.11.3 have not."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)


def made_once(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder `name` among the temporary ones of this user, which `fill` fills if it is not there.

    It is filled beside its place: of two processes that do so at once, one finds that it is there already.
    """
    place = Path(tempfile.gettempdir()) / f"rlinf-async-sources-{os.getuid()}" / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=place.parent))
    try:
        fill(made)
        made.rename(place)
    except OSError:
        if not place.is_dir():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return place
