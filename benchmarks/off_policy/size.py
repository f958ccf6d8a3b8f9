"""The size of a file in lines of code: no blank lines, comments or docstrings."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

NOT_CODE = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


def code_lines(path: Path) -> int:
    """Return the number of lines of `path` with code on them."""
    text = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in NOT_CODE and token.type != tokenize.ENDMARKER
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - _strings_alone(ast.parse(text)))


def _strings_alone(tree: ast.Module) -> set[int]:
    """Return the lines of expressions that are only a string: docstrings, also those of attributes."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
