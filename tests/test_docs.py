"""README and docs: links lead somewhere, commands work, and the page of settings is that of the code."""

import importlib
import itertools
import re
import shlex
import tomllib
import unicodedata
from collections.abc import Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from typer.main import get_command
from typer.testing import CliRunner

from rlinf_async import cli
from rlinf_async.cli import arguments
from rlinf_async.config import AsyncConfig
from rlinf_async.lab.bench import command as bench
from rlinf_async.lab.commands import comparing
from rlinf_async.lab.sweep import command as sweep

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKING = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "patches" / "README.md",
    ROOT / "findings" / "README.md",
    *(ROOT / "benchmarks").rglob("*.md"),
]

LINK = re.compile(r"\]\((?P<path>[^)\s#]*)(?:#(?P<anchor>[^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)

PROGRAMS = ("rlinf-async", "make", "python", "pip", "apt-get", "git", "cd", "ray", "patch", "mkdocs")
"""What a line of an indented block begins with if it is a command."""
INLINE = ("rlinf-async", "make", "python", "pip")
"""The same of inline code. A gap (…) says that it is a message."""

ELSEWHERE = {
    r"rlinf-async configs": "tests/cli/test_cli.py::test_every_config_that_is_listed_says_what_it_is",
    r"rlinf-async doctor": (
        "tests/doctor/test_doctor.py::test_every_check_has_its_own_name_and_turns_into_json"
    ),
    r"rlinf-async status .*": "tests/observe/test_status.py",
    r"rlinf-async compat .*": "tests/hosts/rlinf/test_checkout.py",
    r"rlinf-async trace .*": "tests/lab/trace",
    r"rlinf-async report .*": "tests/lab/report",
    r"rlinf-async (explain|train) --config-dir \. -n points_verl": "tests/runs_verl/test_one_package.py",
    r"rlinf-async train --config-dir \. -n points_local": "tests/test_docs_extending.py",
    r"python examples/smallest_host\.py": (
        "tests/test_docs_extending.py::test_the_smallest_host_trains_every_trajectory_once"
    ),
    r"python examples/toy_host\.py": (
        "tests/test_docs_extending.py::test_a_host_of_the_kit_learns_and_trains_every_trajectory_once"
    ),
    r"rlinf-async (explain|train)( -n)? verl_.*": "tests/runs_verl",
    r"rlinf-async sweep --config-name verl_.*": "tests/lab/sweep/test_hosts.py",
    r"rlinf-async sweep --config-dir \$EMBODIED_PATH/config .*--output sweeps/libero .*": (
        "tests/test_tutorials.py::test_the_sweep_of_the_libero_page_is_three_settings_of_twelve_steps"
    ),
    r"rlinf-async train local/point_reach run_dir=.*": (
        "tests/test_tutorials.py::test_the_commands_of_the_page_on_reports_work_as_they_stand"
    ),
    r"python -m verl\.trainer\.main_ppo --config-name verl_.*": "tests/runs_verl",
    r"make (setup-verl|test-verl)": ".ci/run",
    r"make demo-verl": "tests/runs_verl",
    r"rlinf-async (explain|train) --config-dir \. -n points": (
        "tests/test_docs_extending.py::test_the_worker_takes_the_place_of_ours_and_the_config_resolves"
    ),
    r"rlinf-async explain --config-dir .* --gpus 8 --nodes 2 .*": "tests/test_docs_placement.py",
    r"rlinf-async explain --config-dir \$EMBODIED_PATH/config .*": "tests/test_docs_rlinf_configs.py",
    r"rlinf-async (explain|sweep) --config-dir \$EMBODIED_PATH/config .*\+paper=.*": (
        "tests/test_docs_papers.py"
    ),
    r"python docs/generate_papers\.py CHECKOUT": "tests/test_docs_papers.py",
    r"make (setup|setup-dev|setup-libero|setup-maniskill|check|docs|test|clean-room)": ".ci/run",
    r"make demo": ".ci/run",
    r"\.ci/run": ".github/workflows/ci.yml",
    r"make demo-vla|rlinf-async train metaworld_ppo_pi0": "tests/vla/test_tiny_pi0.py",
    r"rlinf-async bench --scenario maniskill-real .*": "tests/runs/test_maniskill.py",
    r"rlinf-async plan.*": "tests/lab/plan/test_command.py",
    r"rlinf-async bench --host verl .*": "tests/runs_verl/test_bench.py",
    r"(nice )?python -m benchmarks\.learning\.flow.*": "tests/benchmarks/test_flow.py",
    r"python -m benchmarks\.(chaos|newcomer|schedules|dead_work\.shards).*": (
        "tests/benchmarks/test_commands.py::test_a_benchmark_runs_at_its_smallest_size"
    ),
    r"python -m benchmarks\.learning\.(tasks|pi0|causes|group_scene).*": (
        "tests/benchmarks/test_commands.py::test_a_benchmark_runs_at_its_smallest_size"
    ),
}
"""Commands that this file does not run, and what runs them, or the same on a smaller scale."""

NOT_RUN = {
    r"ray start --address=FIRST_NODE:6379 --resources=.*": (
        "it wants another machine; tests/hosts/verl/test_placement.py starts two nodes of Ray on one"
    ),
    r"pip uninstall .*": "it would take away what is tested",
    r"pip install.*": (
        "it installs from PyPI; `make setup` in .ci/run installs the same requirements, and "
        "tests/test_packaging.py the package"
    ),
    r"git clone .*|bash requirements/.*|source .*|export": (
        "the steps of RLinf's own installation; tests/runs/test_checkouts.py runs a checkout on PYTHONPATH"
    ),
    r"python \$EMBODIED_PATH/train_embodied_agent\.py .*": (
        "it wants eight GPUs and published weights; tests/vla/test_runs.py runs this script and config "
        "with a tiny model"
    ),
    r"isaaclab train .*": "it wants Isaac Sim; tests/runs/test_isaac_like.py starts a launcher of its form",
    r"docker build .*": "it wants Docker and an image of RLinf's, tens of gigabytes",
    r"apt-get install .*": "it installs from Debian's archive; .ci/run installs the same packages",
    r"make setup TORCH_INDEX_URL=\.\.\.": "the index depends on the machine",
    r"python examples/local_metaworld\.py": "it takes minutes; it is imported below",
    r"make runs-verl": "it takes a quarter of an hour; tests/runs_verl/test_runs.py runs some of it",
    r"make (setup-vla )?test-(vla|verl-vla|trees).*": "it needs sources that no package index has",
    r"make test-pythons": "it takes environments of gigabytes; `make nightly` runs it",
    r"make nightly": "it takes hours; it runs the tests that are marked nightly",
    r"make format": "it changes files; `make check` in .ci/run checks what it leaves",
}
"""Commands that no test runs, and why."""


def prose(text: str) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", text)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MkDocs make it."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    plain = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_and_anchor_leads_somewhere(page):
    for link in LINK.finditer(prose(page.read_text())):
        path, anchor = link["path"], link["anchor"]
        if ":" in path:
            continue
        # The page of a workflow, and its badge: GitHub's own links, which lead out of the tree.
        if workflow := re.fullmatch(r"\.\./\.\./actions/workflows/([\w.]+)(/badge\.svg)?", path):
            path = f".github/workflows/{workflow[1]}"
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link[0]}: there is no {target}"
        if anchor:
            anchors = {slug(heading) for heading in HEADING.findall(prose(target.read_text()))}
            assert anchor in anchors, f"{link[0]}: {target.name} has {sorted(anchors)}"


def blocks(text: str) -> Iterator[str]:
    """The commands in code blocks, continued lines joined: of bash, of console, and indented ones."""
    for fence in FENCE.finditer(text):
        opening, *lines, _ = fence[0].splitlines()
        language = opening.strip().strip("`").partition(" ")[0]
        if language == "console":
            lines = [line.strip()[2:] for line in lines if line.strip().startswith("$ ")]
        if language in ("bash", "console"):
            yield from "\n".join(lines).replace("\\\n", " ").splitlines()
    for line in re.sub(r"\\\n +", " ", prose(text)).splitlines():
        if line.startswith("    ") and is_command(line):
            yield line


def is_command(line: str, programs: Sequence[str] = PROGRAMS) -> bool:
    words = [word for word in line.split() if not re.match(r"[A-Z_]+=", word)]
    return len(words) > 1 and words[0] in programs and "…" not in line


def commands(text: str) -> Iterator[str]:
    """Every command of a page, without comments and with single spaces."""
    inline = re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(text))
    for line in itertools.chain(blocks(text), [code for code in inline if is_command(code, INLINE)]):
        words = shlex.split(line, comments=True)
        if words:
            yield shlex.join(words).replace("'", "")


ALL = sorted({command for page in PAGES for command in commands(page.read_text())})


def test_commands_are_found_in_every_kind_of_code():
    text = "`make a` is\n\n    VAR=1 make b  # why\n\n```bash\nmake \\\n    c\n```\n\n"
    text += "```console\n$ make d\nsaid\n```\n"
    assert list(commands(text)) == ["make c", "make d", "VAR=1 make b", "make a"]
    assert len(ALL) > 30


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A directory with what the commands name: a config of the user's, and the directory of a run."""
    directory = tmp_path_factory.mktemp("workplace")
    (directory / "mine.yaml").write_text("defaults: [/metaworld_ppo_mlp, _self_]\n")
    from rlinf_async.compose import compose_config

    run = directory / "runs" / "metaworld_ppo_mlp"
    run.mkdir(parents=True)
    OmegaConf.save(compose_config("metaworld_ppo_mlp", []), run / "config.yaml", resolve=True)
    return directory


@pytest.mark.parametrize("command", ALL)
def test_every_command_works_or_is_run_elsewhere_or_cannot_be_run(command, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    bare = " ".join(words)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if words[0] == "rlinf-async":
        name, parameters = parse(words[1:])
    if any(re.fullmatch(pattern, bare) for pattern in NOT_RUN):
        return
    place = next((where for pattern, where in ELSEWHERE.items() if re.fullmatch(pattern, bare)), None)
    if place is not None:
        exists(place)
    elif words[0] == "rlinf-async":
        rlinf_async(name, parameters)
    elif words[0] == "python":
        python(words[1:])
    else:
        pytest.fail(f"nothing runs {command!r}, and ELSEWHERE and NOT_RUN do not name it")


def exists(place: str) -> None:
    """A test by name, or a file or folder of tests."""
    file, _, test = place.partition("::")
    assert (ROOT / file).exists(), f"there is no {file}"
    assert not test or f"def {test}(" in (ROOT / file).read_text(), f"there is no {place}"


def parse(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command and its parameters, placeholders replaced; none where it is only named."""
    name, *arguments = [{"DIR": ".", "NAME": "mine"}.get(word, word) for word in words]
    if "--output" in arguments:
        arguments[arguments.index("--output") + 1] = "output"
    if "mine" in arguments and "--config-dir" not in arguments:
        arguments += ["--config-dir", "."]
    subcommand = get_command(cli.app).get_command(None, name)
    return name, subcommand.make_context(name, list(arguments)).params if arguments else {}


def rlinf_async(name: str, parameters: dict[str, Any]) -> None:
    """Explain what would be trained, plan what would be measured."""
    if not parameters:
        return
    if parameters.get("overrides") and parameters.get("config_name") is None:
        parameters["config_name"], *parameters["overrides"] = parameters["overrides"]
    if name in ("train", "explain"):
        directory = parameters["config_dir"]
        options = ["--config-dir", str(directory)] if directory else []
        options += ["--diff", parameters["diff"]] if parameters.get("diff") else []
        overrides = parameters["overrides"] or []
        result = CliRunner().invoke(
            cli.app, ["explain", "-n", parameters["config_name"], *options, *overrides]
        )
        assert result.exit_code == 0, result.output
    elif name == "bench":
        listed = {key: comparing.split_at_commas(parameters[key]) for key in ("scenario", "modes")}
        repetitions = parameters["repetitions"]
        assert bench.plan(scenarios=listed["scenario"], modes=listed["modes"], repetitions=repetitions)
    elif name == "sweep":
        place = [parameters[key] for key in ("config_name", "config_dir")]
        parameters["overrides"] = parameters["overrides"] or []
        assert sweep.plan(arguments.compose(*place, overrides=parameters["overrides"]), **parameters).cells
    else:
        pytest.fail(f"nothing runs rlinf-async {name}: name the test that does in ELSEWHERE")


def python(words: list[str]) -> None:
    """Parse the options of `python -m benchmarks.NAME`; tests/benchmarks/test_commands.py runs it."""
    assert words[0] == "-m", f"nothing runs python {' '.join(words)}"
    assert words[1].startswith("benchmarks.")
    app = get_command(importlib.import_module(f"{words[1]}.__main__").app)
    app.make_context(words[1], words[2:])


def test_the_example_can_be_imported():
    spec = spec_from_file_location("example", ROOT / "examples" / "local_metaworld.py")
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    assert callable(example.main)


@pytest.fixture
def generator(monkeypatch):
    """One of the scripts that fill pages."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module


def test_the_readme_fits_on_two_screens():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    assert len(text.split()) <= 900


def test_both_front_pages_say_the_same_of_learning():
    said = [
        re.search(r"^\* \*\*Learning\.\*\*.*?(?=^\* )", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        for page in ("README.md", "docs/index.md")
    ]
    first, second = (" ".join(LINK.sub("", each[0]).split()) for each in said)
    assert first == second


@pytest.mark.parametrize("name", ["config", "keys", "messages", "models", "performance", "readme"])
def test_a_page_with_generated_tables_is_up_to_date(generator, name):
    page = (ROOT / "README.md" if name == "readme" else ROOT / "docs" / f"{name}.md").read_text()
    assert generator(f"generate_{name}").generate(page) == page, "run `make format`"


def test_the_page_of_all_measurements_is_up_to_date(generator):
    page = (ROOT / "benchmarks" / "schedules" / "measurements.md").read_text()
    assert generator("generate_performance").generate_all(page) == page, "run `make format`"


def test_the_block_on_the_page_of_settings_is_what_full_means(generator):
    text = generator("generate_config").block().removeprefix("```yaml\n").removesuffix("```")
    assert AsyncConfig.from_mapping(yaml.safe_load(text)["async"]) == AsyncConfig.from_mapping(
        {"mode": "full"}
    )


def test_the_site_has_every_page_in_its_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]]
    assert [page for page in pages if f" {page}\n" not in text] == []


def test_every_metric_of_a_step_is_on_the_page_of_settings():
    page = (ROOT / "docs" / "config.md").read_text()
    for module in ("observe/events.py", "ray_runtime/driver/step_reporter.py"):
        named = re.findall(r'"(async/[a-z_/]*)', (ROOT / "rlinf_async" / module).read_text())
        assert [name for name in named if name != "async/" and f"`{name}" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page):
    homes = [
        ROOT,
        ROOT / "rlinf_async",
        ROOT / "rlinf_async" / "hosts" / "rlinf",
        ROOT / "rlinf_async" / "hosts" / "verl",
        ROOT / "benchmarks" / "learning",
    ]
    named = set(re.findall(r"`((?:[\w.-]+/)*[\w-]+\.py)(?:::\w+)?`", prose(page.read_text())))
    assert [name for name in sorted(named) if not any((home / name).exists() for home in homes)] == []


def test_every_extra_is_described():
    page = (ROOT / "docs" / "install.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [extra for extra in extras if f"| `{extra}` |" not in page] == []
