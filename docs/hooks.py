"""Brings the files of the repository that pages link to, such as a benchmark's results, into the site.

In the repository such a link leads out of `docs/`. Here the file gets the place in the site that it has in
the repository, as a page if it is Markdown, and the links are written anew. MkDocs checks them afterwards.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
LINK = re.compile(r"\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def linked(source: Path) -> Iterator[Path]:
    """The files of the repository that a page links to."""
    for match in LINK.finditer(source.read_text()):
        target = (source.parent / match["path"]).resolve()
        if target.is_file() and target.is_relative_to(ROOT):
            yield target


def place(path: Path) -> str:
    """Where a file is in the site: pages of `docs/` at its root, everything else as in the repository."""
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()


def on_files(files: Any, config: Any) -> Any:
    """Add what is linked to, and what that links to in turn."""
    pages = [Path(file.abs_src_path) for file in files.documentation_pages()]
    while pages:
        for target in linked(pages.pop()):
            if target.is_relative_to(DOCS) or files.get_file_from_path(place(target)):
                continue
            # Where the navigation does not name it, it is reached by the link alone.
            inclusion = InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, place(target), abs_src_path=str(target), inclusion=inclusion))
            if target.suffix == ".md":
                pages.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write links between files of the repository as links between places of the site."""
    source, here = Path(page.file.abs_src_path), posixpath.dirname(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        target = (source.parent / match["path"]).resolve()
        if not target.is_file() or not target.is_relative_to(ROOT):
            return match[0]
        return f"]({posixpath.relpath(place(target), here or '.')}{match['anchor'] or ''})"

    return LINK.sub(rewritten, markdown)
