"""docs/models.md names the versions that are required and tested with."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"
ROWS = {
    "torch": ("torch", None, ".ci/constraints.txt"),
    "RLinf": ("rlinf", "rlinf-wheel", ".ci/constraints.txt"),
    "veRL": ("verl", "verl", ".ci/constraints-verl.txt"),
    "Ray": ("ray", "rlinf", ".ci/constraints.txt"),
    "transformers, with RLinf": ("transformers", "rlinf", ".ci/constraints.txt"),
    "transformers, with veRL": ("transformers", None, ".ci/constraints-verl.txt"),
    "Hydra, with RLinf": ("hydra-core", None, ".ci/constraints.txt"),
}
"""Each row's package, the extra that asks for it (None: the package itself), and the file that pins what the
tests run with.
"""


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def row(name):
    (cells,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    return [cell.strip() for cell in cells.split("|")]


@pytest.mark.parametrize("name", ROWS)
def test_the_version_that_is_tested_with_is_the_pinned_one(name):
    package, _, file = ROWS[name]
    (pinned,) = re.findall(rf"^{package}==([^\s;]+)", (ROOT / file).read_text(), re.MULTILINE)
    assert pinned in row(name)[1]


@pytest.mark.parametrize("name", ["torch", "veRL", "Ray", "transformers, with RLinf", "Hydra, with RLinf"])
def test_every_number_of_the_requirement_is_on_the_page(name):
    package, extra, _ = ROWS[name]
    wanted = project()["optional-dependencies"][extra] if extra else project()["dependencies"]
    (found,) = [each for text in wanted if (each := Requirement(text)).name == package]
    accepted = row(name)[0]
    for specifier in found.specifier:
        if specifier.operator == "<" and accepted.endswith(".x"):
            continue  # 4.57.x says both ends
        assert specifier.version in accepted


def test_python_is_that_of_the_metadata():
    oldest, end = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project()["requires-python"]).groups()
    assert row("Python")[0] == f"3.{oldest} to 3.{int(end) - 1}"


def test_the_version_to_upgrade_from_is_the_present_one():
    assert f"The version is {project()['version']}." in (ROOT / "docs" / "install.md").read_text()


def test_the_badges_and_the_citation_say_what_the_metadata_says():
    oldest, end = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project()["requires-python"]).groups()
    verl = Requirement(next(text for text in project()["optional-dependencies"]["verl"] if "verl" in text))
    readme = (ROOT / "README.md").read_text()
    assert f"badge/Python-3.{oldest}_to_3.{int(end) - 1}-" in readme
    assert f"badge/veRL-{next(each.version for each in verl.specifier if each.operator == '>=')}-" in readme
    assert f"badge/licence-{project()['license'].replace('-', '--')}-" in readme
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (project()["version"], project()["license"])
    assert [each["url"] for each in citation["references"]] == [
        url for name, url in project()["urls"].items() if name.startswith("Paper")
    ]
