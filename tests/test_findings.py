"""The page of findings lists every script, by library, with the version that the script installs."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "findings"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
ROW = re.compile(
    r"^\| \[`(?P<name>[\w-]+\.sh)`\]\((?P=name)\) \| (?P<of>[^|]+) \| [^|]+ \| (?P<heeds>[^|]+) \|$",
    re.MULTILINE,
)
ROWS = {row["name"]: row for row in ROW.finditer((FOLDER / "README.md").read_text())}


def test_the_page_has_a_row_for_every_script_in_the_order_of_the_libraries():
    assert sorted(ROWS) == [script.name for script in SCRIPTS]
    libraries = [row["of"].lower() for row in ROWS.values()]
    assert libraries == sorted(libraries)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_row_names_the_version_that_its_script_says_and_installs(script):
    text = script.read_text()
    library, version = re.search(r"^# ([\w-]+) (\d[\w.]*):", text, re.MULTILINE).groups()
    assert ROWS[script.name]["of"].startswith(f"{library} {version}")
    assert f"{library.lower().replace('-', '')}=={version}" in text
    assert len(ROWS[script.name]["heeds"].split()) > 5


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_stops_at_the_first_failure_and_removes_its_folder(script):
    text = script.read_text()
    assert "set -euo pipefail" in text
    assert "mktemp -d" in text
    assert re.search(r"^trap .*rm -rf", text, re.MULTILINE)
