"""The places of a page that a script fills."""

from collections.abc import Mapping

BEGIN, END = "<!-- generated: {} -->", "<!-- end of {} -->"


def fill(page: str, parts: Mapping[str, str]) -> str:
    """The page with every part anew between its two marks.

    Raises:
        ValueError: the page has no place for a part.
    """
    for name, text in parts.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise ValueError(f"the page has no place for {name}: {begin} ... {end}")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page
