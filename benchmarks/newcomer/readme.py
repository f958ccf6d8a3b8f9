"""Read the commands for a newcomer from the README."""

from __future__ import annotations

TRY_HEADING = "## Try it"
COMPARE_HEADING = "## Compare it with RLinf's own loop"


def commands_of(readme: str, heading: str) -> list[str]:
    """Return the lines of the first block of code below `heading`, without comments.

    Raises:
        ValueError: the README has no such heading, or no block of code below it.
    """
    _, found, below = readme.partition(f"\n{heading}\n")
    section = below.partition("\n## ")[0]
    _, fence, code = section.partition("```bash\n")
    if not found or not fence:
        raise ValueError(f"the README has no commands under {heading!r}")
    lines = (line.partition("  #")[0].strip() for line in code.partition("```")[0].splitlines())
    return [line for line in lines if line]
