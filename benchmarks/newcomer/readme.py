"""The commands that the README gives to a newcomer."""

from __future__ import annotations

TRY = "## Try it"
COMPARE = "## Compare it with RLinf's own loop"


def commands_of(readme: str, heading: str) -> list[str]:
    """The lines of the first block of code below the heading, without comments.

    Raises:
        ValueError: there is no such heading, or no block.
    """
    _, found, below = readme.partition(f"\n{heading}\n")
    section = below.partition("\n## ")[0]
    _, fence, code = section.partition("```bash\n")
    if not found or not fence:
        raise ValueError(f"the README has no commands under {heading!r}")
    lines = (line.partition("  #")[0].strip() for line in code.partition("```")[0].splitlines())
    return [line for line in lines if line]
