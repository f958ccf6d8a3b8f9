"""The table of wrong lines by hand belongs to the package as it is."""

import tomllib

import pytest

from tests.wrong_lines import LINES, ROOT, changed

TABLE = tomllib.loads(LINES.read_text())


@pytest.mark.parametrize("line", TABLE["line"], ids=lambda line: line["what"])
def test_each_wrong_line_is_one_of_the_package_and_has_tests(line):
    right = (ROOT / line["file"]).read_text()
    assert changed(right, line["old"], line["new"], file=line["file"]) != right
    assert all((ROOT / test.partition("::")[0]).exists() for test in TABLE["groups"][line["group"]])


def test_there_are_forty():
    assert len(TABLE["line"]) == 40
