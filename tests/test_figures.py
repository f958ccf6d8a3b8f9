"""Figures in prose: README and the pages state what the committed results say."""

import json
import math
import re
from pathlib import Path
from statistics import median

import pytest

from benchmarks.learning import causes as causes_plan
from benchmarks.learning import comparison, confirm, confirm_pi0, evidence, pi0, singles
from benchmarks.learning.campaign import complete, rows_of
from benchmarks.learning.statistics import batch_at, learned, tost_paired
from benchmarks.schedules import hosts
from rlinf_async.lab.bench.results import Results
from rlinf_async.lab.report.advice.bounds import LOGLINEAR_PRICE

ROOT = Path(__file__).parents[1]
SCHEDULES = ROOT / "benchmarks" / "schedules"
LEARNING = ROOT / "benchmarks" / "learning" / "results"
COMPUTED = ("maniskill-real", "metaworld", "libero-real")
"""Scenarios in which nothing is emulated."""
SIXTEEN_CORES = ("sixteen_cores", "sixteen_cores_12")
COUNTS = re.findall(r"\w+", "none one two three four five six seven eight nine ten eleven twelve")
MEASUREMENTS = "benchmarks/schedules/measurements.md"
MEASUREMENTS_OF_LEARNING = "benchmarks/learning/measurements.md"
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def words(page):
    """The words of a page, without marks of emphasis and line ends."""
    return " ".join((ROOT / page).read_text().replace("**", "").split())


def rows(name):
    """What a bench has measured, by scenario and mode."""
    return {(row["scenario"], row["mode"]): row for row in Results(SCHEDULES / f"{name}.cells.jsonl").rows()}


def setting(name):
    """A setting of the preregistered experiment: differences in per cent, to one digit."""
    found = {row["setting"]: row for row in read("preregistered")["rows"]}[name]
    return {key: f"{100 * found[key]:+.1f}" for key in ("difference", "ci_low", "ci_high")}


def read(name):
    return json.loads((LEARNING / f"{name}.json").read_text())


def ends_with(run):
    """The success, or the return, of a preregistered run, over the last quarter of its batches."""
    success = read(f"preregistered/{run}")["success"]
    last = success[-round(len(success) / 4) :]
    return sum(last) / len(last)


def gains():
    """What was learned above the start, by setting."""
    return {row["setting"]: row for row in read("gains")}


def interval(row, prefix=""):
    middle, low, high = (100 * row[f"{prefix}{key}"] for key in ("difference", "ci_low", "ci_high"))
    return f"{middle:+.1f} % [{low:+.1f}, {high:+.1f}]"


FINDINGS = evidence.findings()
"""Every comparison of learning, computed anew from its runs."""


def shown(test):
    """A difference and its interval, as pages write them."""
    return f"{100 * test.difference:+.1f} % [{100 * test.ci_low:+.1f}, {100 * test.ci_high:+.1f}]"


def said_of(setting):
    """The difference of a preregistered setting to the synchronous curve itself."""
    (found,) = (one for one in FINDINGS if one.name == f"`{setting}`")
    return shown(found.itself)


def lines(page):
    """The rows of all tables of a page, as their cells."""
    text = (ROOT / page).read_text().replace("**", "").replace("`", "")
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def speed():
    """Of throughput."""
    page = MEASUREMENTS
    measured, earlier, today = rows("results"), rows("earlier"), rows("by_default")
    full, stock = (measured["maniskill-real", mode] for mode in ("full", "stock-sync-1"))
    factor, spread = full["ratio_stock_sync"], full["range"]["ratio_stock_sync"]
    compared = {scenario for scenario, mode in measured if mode.startswith("stock")}
    emulated = {
        scenario: row
        for (scenario, mode), row in measured.items()
        if mode == "full" and scenario in compared and scenario not in COMPUTED
    }
    by_default = emulated | {scenario: row for (scenario, mode), row in today.items() if mode == "full"}
    ratios = [row["ratio_best_stock"] for row in by_default.values()]
    gains = {scenario: row["ratio_best_stock"] for scenario, row in emulated.items()}
    least, most = min(gains, key=gains.get), max(gains, key=gains.get)
    shares = {scenario: row["overlap_efficiency"] for scenario, row in emulated.items()}
    worst, best = min(shares, key=shares.get), max(shares, key=shares.get)
    gain = f"{min(ratios):.2f} to {max(ratios):.1f} times the best of RLinf's modes"
    yield "README.md", gain
    yield page, f"{factor:.1f} times the throughput of RLinf's synchronous loop on ManiSkill's PickCube"
    yield page, f"({spread[0]:.1f} to {spread[1]:.1f}, {COUNTS[full['repetitions']]} runs each)"
    yield page, f"`full` trained {gains[least]:.2f} (`{least}`) to {gains[most]:.1f} (`{most}`) times as many"
    yield page, f"{shares[worst]:.2f} (`{worst}`) to {shares[best]:.2f} (`{best}`) of what the service"
    for scenario in ("train-bound", "balanced"):
        helped = measured[scenario, "full-scorer"]
        share, gain_over = helped["overlap_efficiency"], helped["ratio_best_stock"]
        yield page, f"{gain_over:.2f} and {share:.2f} in `{scenario}`"
    yield page, f"it was {earlier['metaworld', 'full']['ratio_best_stock']:.1f} times,"
    yield "docs/index.md", gain
    cpu = COUNTS[round(stock["cpu_ms"] / full["cpu_ms"])]
    yield page, f"RLinf's own processes take {cpu} times the CPU there"
    third = measured["maniskill-real", "stock-async"]["cpu_ms"]
    yield page, f"costs {stock['cpu_ms']:.0f} ms of CPU time in RLinf's synchronous loop"
    yield page, f"{third:.0f} in its asynchronous PPO"
    yield page, f"and {full['cpu_ms']:.0f} in `full`"
    full, tasks = json.loads((SCHEDULES / "tasks.json").read_text())["rows"]
    (low, high), (least, most) = (row["range"]["fresh_steps_per_s"] for row in (tasks, full))
    yield (
        page,
        f"{tasks['fresh_steps_per_s']:,.0f} fresh steps/s ({low:,.0f} to {high:,.0f}) over "
        f"{full['fresh_steps_per_s']:,.0f} ({least:,.0f} to {most:,.0f}), which is "
        f"{tasks['fresh_steps_per_s'] / full['fresh_steps_per_s']:.2f}",
    )


def page_of_speed():
    """Of the page of the figures that matter, which are those of all measurements."""
    page, measured = "docs/performance.md", rows("results")
    full = measured["maniskill-real", "full"]
    low, high = full["range"]["ratio_stock_sync"]
    yield page, f"made {full['ratio_stock_sync']:.1f} times the throughput of RLinf's synchronous loop"
    yield page, f"({low:.1f} to {high:.1f}, {COUNTS[full['repetitions']]} runs each)"
    scenarios = ("train-bound", "balanced", "libero")
    alone = [measured[name, "full"]["ratio_best_stock"] for name in scenarios]
    yield (
        page,
        "`full` was {:.2f} times the best of RLinf's modes there, {:.2f} times in `balanced`".format(*alone),
    )
    yield page, f"and {alone[2]:.2f} times in `libero`"
    earlier = rows("earlier")
    computed = [earlier[name, "full"]["ratio_best_stock"] for name in ("metaworld", "libero-real")]
    yield page, f"it was {computed[0]:.1f} times the best of RLinf's modes, on LIBERO {computed[1]:.2f}"
    yield page, f"leaves {rows('by_default')['fast', 'full']['own_efficiency']:.2f} of the bound"
    shares = [each["libero", "full"]["overlap_efficiency"] for each in map(rows, SIXTEEN_CORES)]
    yield page, f"had {shares[0]:.2f} of the bound over four steps and {shares[1]:.2f} over twelve"


def sixteen_cores():
    """Of throughput where no process waits for a core."""
    page = MEASUREMENTS
    four, twelve = map(rows, SIXTEEN_CORES)

    def shares(scenario, mode):
        return [f"{measured[scenario, mode]['overlap_efficiency']:.2f}" for measured in (four, twelve)]

    few, many = shares("libero", "full")
    yield page, f"`libero` had {few} of what the service times allow over four steps and {many} over twelve"
    yield page, f"`libero` has {many} of the bound in the place of {few}"
    few, many = shares("resets", "full-scorer")
    yield page, f"`resets`, scored by inference, {few} and {many}"
    yield page, f"`resets` {many} in the place of {few}"
    few, many = shares("long-tail", "full")
    yield page, f"`long-tail` {many} in the place of {few}"
    for measured in (four, twelve):
        tasks, full = (measured["libero", mode]["fresh_steps_per_s"] for mode in ("full-tasks", "full"))
        assert f"{tasks / full:.2f}" == "1.27"
    yield page, "`libero` was 1.27 times as fast there"
    yield page, "`full-tasks` was 1.27 times `full`"


def newcomer():
    """Of what README has a newcomer do, in a clean room."""
    took = json.loads((ROOT / "benchmarks" / "newcomer" / "result.json").read_text())
    first, compare = took["try"], took["compare"]
    assert [one["command"] for one in first["commands"]] == ["make demo"]
    yield (
        "README.md",
        f"make demo # trains a small policy on Meta-World: {math.ceil(first['seconds'] / 60)} minutes, "
        f"{first['gigabytes']} GB",
    )
    assert first["cores"] == 2
    seconds = {
        name: round(sum(each["seconds"] for each in compare["commands"] if name in each["command"]))
        for name in ("make setup", "mode=off", "mode=full")
    }
    yield (
        "README.md",
        f"{round(compare['seconds'])} seconds on {COUNTS[compare['cores']]} cores, of which "
        f"`make setup` took {seconds['make setup']}, `off` {seconds['mode=off']} and `full` "
        f"{seconds['mode=full']}",
    )


def learning():
    """Of learning."""
    measurements, page = MEASUREMENTS_OF_LEARNING, "docs/learning.md"
    by_group = {}
    for name, row in gains().items():
        by_group.setdefault(row["group"], {})[name] = row
    toys, pair = by_group["a toy"], by_group["two tasks of unequal speed"]
    on_rlinf = by_group["single tasks under RLinf"]
    taken_off = [
        COUNTS[sum(ends_with(f"{side}rlinf-press-vla-slow-seed{seed}") > 0.5 for seed in range(5))]
        for side in ("sync-", "")
    ]
    yield (
        measurements,
        f"{taken_off[0]} of five synchronous runs came beyond a return of 0.5 in 30 batches, "
        f"and {taken_off[1]} of five of `full`",
    )
    assert all("less" in row["claim"] and "before Holm" not in row["claim"] for row in toys.values())
    totals = [-100 * row["difference"] for row in toys.values()]
    said = f"{min(totals):.0f} to {max(totals):.0f} %"
    for where in (measurements, page):
        yield where, said
    yield page, f"{COUNTS[len(toys)]} settings of PPO and GRPO"
    beyond = [100 * row["beyond_delay_difference"] for row in toys.values()]
    for where in (measurements, page):
        yield where, f"between {min(beyond):+.1f} and {max(beyond):+.1f} %"
    kept = {
        name for name, row in pair.items() if row["claim"].startswith("less") and "before" not in row["claim"]
    }
    assert kept == {"world-ppo-1-lag1-unstreamed", "world-ppo-4-lag1"}
    for name, row in pair.items():
        if not name.endswith("-loglinear"):
            yield measurements, interval(row)
            yield measurements, interval(row, "beyond_delay_")
    yield page, f"With the first version {said_of('world-ppo-1-lag1-spread')}"
    ((name, press),) = ((name, row) for name, row in on_rlinf.items() if row["claim"])
    assert (name, press["claim"]) == ("rlinf-press-ppo-1-fsdp1", "less, before Holm")
    yield measurements, f"learned less by its own test ({interval(press)})"
    rlinf = [one for one in FINDINGS if one.group == evidence.ON_RLINF]
    words = [one.words for one in rlinf]
    assert set(words) == {"not below -5%", "unknown"}
    yield (
        page,
        f"{COUNTS[len(rlinf)]} settings with five seeds each: {COUNTS[words.count('not below -5%')]} is not "
        f"below -5 %, of {COUNTS[words.count('unknown')]} nothing is known",
    )
    yield measurements, interval(on_rlinf["rlinf-press-ppo-1-fsdp2"])
    press = setting("rlinf-press-ppo-1-fsdp2")
    yield measurements, f"{press['difference']} % [{press['ci_low']}, {press['ci_high']}]"
    ppo = [row for row in read("equivalence") if row["algorithm"] == "ppo" and row["host"] == "both"]
    equivalent, seeds = [row for row in ppo if row["equivalent"]], {row["seeds"] for row in ppo}
    (other,) = {row["task"].removesuffix("-v3") for row in ppo if not row["equivalent"]}
    yield (
        measurements,
        f"on {COUNTS[len(equivalent)]} of {COUNTS[len(ppo)]} Meta-World tasks with PPO "
        f"({COUNTS[seeds.pop()]} seeds; on {other} less was learned)",
    )
    under_verl = read("verl")
    smaller = -100 * under_verl["tests"]["area"]["difference"]
    yield (
        measurements,
        f"`full` against this package's own loop on the demo ({COUNTS[len(under_verl['seeds'])]}",
    )
    yield measurements, f"{under_verl['verdict']} within 10 %, the area {smaller:.1f} % smaller"


def causes():
    """Of the experiment that takes asynchronous training apart, and of its rule for the default."""
    page, table = "docs/learning.md", lines("benchmarks/learning/results/causes.md")
    numbers = {row[0]: NUMBER.findall(row[1]) for row in table}
    found = {name: f"{got[0]} % [{got[1]}, {got[2]}]" for name, got in numbers.items() if len(got) == 3}
    claims = {row[0]: row[3] for row in table if len(row) == 6}
    for arm in ("own", "tasks"):
        yield MEASUREMENTS_OF_LEARNING, found[arm]
    assert {arm for arm, claim in claims.items() if "within" in claim} == {"tasks"}
    assert not any("less" in claim for claim in claims.values())
    rows_ = rows_of(causes_plan.ROWS_FILE, causes_plan.Run)
    seeds = complete(rows_, causes_plan.runs())
    yield page, f"{len(seeds)} of its {len(causes_plan.PLANNED_SEEDS)} seeds were run"
    areas = causes_plan.shares(rows_, seeds)
    rule = tost_paired(areas["own"], areas["tasks"], 1.0, comparison.TAIL)
    assert rule.p_difference > 0.05  # by the rule the default stayed
    yield page, f"it was {shown(rule)}, p = {rule.p_difference:.2f}"
    normalised = tost_paired(areas["own"], areas["before"], 1.0, comparison.TAIL)
    yield (
        page,
        f"({shown(normalised)} for how it was, one of {COUNTS[len(causes_plan.ARM_PAIRS)]} comparisons",
    )


def by_lag():
    """Rows of the experiment with a fixed lag, by lag and correction."""
    table = lines("benchmarks/learning/results/staleness.md")
    return {(row[0], row[1]): row for row in table if len(row) == 10}


def uncorrected():
    """Of what a correction is for: what is lost without one, over what the delay alone costs."""
    none = by_lag()["1", "none"]
    times = COUNTS[int(float(none[4]) / float(none[6]))]
    for page in (MEASUREMENTS_OF_LEARNING, "docs/choosing.md"):
        yield page, f"{times} times the delay"


def front_page():
    """Of the README's picture and its three rows of evidence."""
    page, press = "README.md", "docs/learning.md"
    seconds = [f"{median(row['seconds to the level']):.0f} s" for row in read("peers")["rows"].values()]
    synchronous, async_ppo, full = seconds
    yield press, f"80 % success came after {full} with `full`, after {synchronous} in the synchronous loop"
    yield press, f"and {async_ppo} in RLinf's asynchronous PPO"
    (row,) = (
        row
        for row in lines("benchmarks/gpu/README.md")
        if row[:2] == ["full", "1"] and "h200.json" not in row and row[3] == "1.64"
    )
    yield page, f"made {row[3]} times the environment steps a second"
    seconds = {
        line.split("|")[1].strip(): [float(number) for number in line.split("|")[2].split(",")]
        for line in (ROOT / "docs" / "models.md").read_text().splitlines()
        if re.match(r" +\| (RLinf alone|`\+async.mode=full` )", line)
    }
    rlinf, ours = (median(values) for values in seconds.values())
    yield page, f"took {ours} s a step where RLinf took {rlinf}"
    yield page, "the demo kept 86 and 90 % of its throughput"


def flow():
    """Of RLinf's pi0 class at tiny sizes: the README's picture, and what was learned."""
    found = pi0.pairs(rows_of(pi0.ROWS_FILE, pi0.Run))
    seconds = {
        mode: median(pi0.seconds_to_level(curves[mode]) or math.inf for curves in found.values())
        for mode in pi0.SIDE_BY_MODE
    }
    said = (
        f"80 % success after {seconds['full']:.0f} s with `full`, after {seconds['off']:.0f} s in RLinf's "
        "synchronous loop"
    )
    for page in ("README.md", "docs/index.md", "docs/models.md"):
        yield page, f"{COUNTS[len(found)]} pairs of seeds"
        yield page, said
    peer = [
        pi0.seconds_to_level(curves[pi0.PEER_MODE]) for curves in found.values() if pi0.PEER_MODE in curves
    ]
    said = f"after {median(peer):.0f} s"
    for page in ("README.md", "docs/index.md"):
        yield page, f"{said} in its asynchronous PPO"
    yield "docs/models.md", f"80 % success {said}"
    for other in ("off", pi0.PEER_MODE):
        logs = [
            math.log(pi0.seconds_to_level(curves["full"]) / pi0.seconds_to_level(curves[other]))
            for curves in found.values()
            if other in curves
        ]
        test = tost_paired([0.0] * len(logs), logs, 1.0, comparison.TAIL)
        middle, low, high = (math.exp(value) for value in (test.difference, test.ci_low, test.ci_high))
        yield "docs/models.md", f"{middle:.2f} [{low:.2f}, {high:.2f}]"
        if other == "off":
            yield "docs/learning.md", f"{middle:.2f} [{low:.2f}, {high:.2f}]"
        assert (high < 1) == (other == "off")
    for tested in pi0.speeds(found):
        assert "which Holm keeps" in tested
    taken = [
        sum(batch_at(curves[mode]["success"], pi0.SUCCESS_LEVEL) + 1 for curves in found.values())
        / len(found)
        for mode in ("full", "off")
    ]
    yield "docs/learning.md", "it took {:.1f} batches where RLinf's loop took {:.1f}".format(*taken)
    (one,) = (one for one in FINDINGS if one.group == evidence.FLOW)
    for page in ("README.md", "docs/index.md", "docs/models.md", "docs/learning.md"):
        yield page, shown(one.itself)
    for page in ("docs/models.md", "docs/learning.md"):
        yield page, f"p = {one.itself.p_difference:.2f}"
    yield "docs/learning.md", f"(p = {one.p_not_worse:.3f})"
    areas = [sum(sum(curves[mode]["success"]) for curves in found.values()) for mode in ("full", "off")]
    yield "docs/learning.md", f"The plain area is {100 * (areas[0] / areas[1] - 1):.1f} % larger"


def as_it_ships():
    """Of `full` as it ships, against the synchronous curve itself, on the seeds of earlier experiments."""
    *alone, pair = (one for one in FINDINGS if one.group == evidence.AS_IT_SHIPS)
    losses = [-100 * one.itself.difference for one in alone]
    assert all(one.itself.pairs == 17 for one in alone)
    assert pair.itself.pairs == 10
    page = "docs/learning.md"
    yield (
        page,
        f"learned {min(losses):.1f} to {max(losses):.1f} % less on {COUNTS[len(alone)]} single settings",
    )
    largest = -100 * pair.itself.difference
    yield page, f"and {largest:.1f} % less on a pair"
    for each in ("README.md", "docs/index.md"):
        yield each, f"earlier seeds learned {min(losses):.1f} to {max(*losses, largest):.1f} % less"


def fresh_seeds():
    """Of the planned experiment with fresh seeds and starts."""
    rows_ = rows_of(confirm.ROWS_FILE, confirm.Run)
    page = "docs/learning.md"
    claims = {"tasks": "less", "full": "less, by more than 5 %"}
    for arm, claim in claims.items():
        mean, p_value = confirm.mean_of_settings(rows_, arm)
        assert confirm.claim(mean, p_value < comparison.TAIL) == claim
        both = f"[{100 * mean.ci_low:.1f}, {100 * mean.ci_high:.1f}]"
        for each in ("README.md", "docs/index.md", page):
            yield each, f"{-100 * mean.difference:.1f} % less"
        yield page, f"{both} at 95 %: a loss, and" if arm == "tasks" else f"{both}: a loss of more than 5 %"
    found = confirm.findings(rows_, "full")
    delayed = [one.moved.difference / one.itself.difference < 0.5 for one in found]
    yield page, f"the delay of a batch explains the greater part in {COUNTS[sum(delayed)]} settings"
    lags = [one.lag for one in found]
    yield page, f"Samples were {min(lags):.1f} to {max(lags):.1f} versions old"
    lags = [one.lag for one in confirm.findings(rows_, "tasks")]
    yield page, f"with `tasks` {min(lags):.1f} to {max(lags):.1f}."
    yield page, f"{sum(run.arm == 'tasks' for run in rows_)} runs, read when the last was there"
    same, pairs = confirm.lean_pairs(rows_)
    assert same == 0
    yield page, f"On Meta-World none of {pairs} was"


def fresh_seeds_of_pi0():
    """Of the planned experiment on RLinf's pi0 class with fresh seeds and starts."""
    rows_ = rows_of(confirm_pi0.ROWS_FILE, confirm_pi0.Run)
    full = confirm_pi0.primary_finding(rows_)
    assert confirm.claim(full.itself, full.p_not_worse < comparison.TAIL) == "not shown"
    for page in ("README.md", "docs/index.md", "docs/learning.md", "docs/models.md"):
        yield page, shown(full.itself)
    page = "docs/learning.md"
    yield page, f"{len(rows_)} runs, read when the last was there"
    yield page, f"(p = {full.p_not_worse:.2f})"
    seconds = {arm: row for arm, *row in confirm_pi0.seconds_of_arms(rows_)}
    (full_batch, full_level, never), lean, lag0 = (
        seconds[f"`{arm}` over `off`"] for arm in ("full", "lean", "lag0")
    )
    for each in ("README.md", "docs/index.md", page, "docs/models.md"):
        yield each, full_batch
    yield page, f"`lean` {lean[0]}, `full` with a lag of 0 took {lag0[0]}"
    reached = len(confirm_pi0.PLANNED_SEEDS) - len(never.split(", "))
    assert never == lean[2] == lag0[2]
    yield page, f"In {COUNTS[reached]} seeds all arms reached 80 %"
    yield page, f"{full_level}, {lean[1]} and {lag0[1]} of its seconds"
    _, of_lag0, of_lag = (
        row[1].replace("%", "").replace(" [", " % [") for row in confirm_pi0.secondary(rows_)
    )
    yield page, f"by {of_lag0}, and `full` from that by {of_lag}"


def single_tasks():
    """Of the experiment on single tasks: its question, its looks, and what it called `full`."""
    rows_ = rows_of(singles.ROWS_FILE, singles.Run)
    seeds = complete(rows_, singles.runs())
    page, looks = "docs/learning.md", (5, 11, len(seeds))
    yield page, f"The plan said {len(singles.PLANNED_SEEDS)} seeds"
    yield (
        page,
        "with {} and {}, the default became `tasks` after {}, and it ended with {}".format(
            *looks[:2], looks[1], looks[2]
        ),
    )
    level = evidence.pocock_level(looks)
    yield page, f"({level:.3f} each, Pocock's)"
    by_default, exact = (singles.claims(rows_, mode, seeds) for mode in ("tasks", "full"))
    assert all(claim == "the same within 5 %" for _, claim in by_default)
    # Holm's steps, at the level of a look.
    ordered = sorted(one.beyond_delay.p_value for one, _ in by_default)
    assert all(p <= level / (len(ordered) - rank) for rank, p in enumerate(ordered))
    (loss,) = (one for one, claim in exact if claim == "less")
    assert loss.setting == "button-press-topdown, PPO"
    (found,) = (one for one in FINDINGS if (one.group, one.name) == (evidence.OWN_PLACES, loss.setting))
    yield page, f"it lost on button-press-topdown with PPO, {shown(found.itself)}"
    better = []
    for setting in singles.TASK_AND_RECIPE_BY_SETTING:
        sync, own, tasks = (
            [rows_[singles.Run(setting, mode, seed)]["success"] for seed in seeds]
            for mode in singles.COMPARED_MODES
        )
        _, before, after = learned(sync, own, tasks)
        better.append(tost_paired(before, after, 1.0, comparison.TAIL))
    first, *others = better
    yield page, f"`tasks` is better by {shown(first).lstrip('+')}"
    assert all(test.ci_low < 0 < test.ci_high for test in others)


CLAIMS = [
    claim
    for claims in (
        front_page,
        flow,
        as_it_ships,
        fresh_seeds,
        fresh_seeds_of_pi0,
        single_tasks,
        causes,
        speed,
        page_of_speed,
        sixteen_cores,
        newcomer,
        learning,
        uncorrected,
    )
    for claim in claims()
]


@pytest.mark.parametrize(("page", "claim"), CLAIMS, ids=[f"{page}: {claim[:40]}" for page, claim in CLAIMS])
def test_a_page_states_what_was_measured(page, claim):
    assert claim in words(page)


def test_the_table_of_lags_is_that_of_its_runs():
    known = by_lag()
    said = [row for row in lines(MEASUREMENTS_OF_LEARNING) if len(row) == 5 and (row[0], "none") in known]
    assert [row[0] for row in said] == [lag for lag, correction in known if correction == "none"]
    for lag, *figures in said:
        differences = [known[lag, correction][4] for correction in ("none", "decoupled", "tis")]
        assert figures == [*differences, known[lag, "none"][6]], lag


def test_the_table_of_anchors_is_that_of_the_preregistered_runs():
    """A cell of fewer than ten pairs says that it is incomplete."""
    known = {
        (name, against): (pairs, NUMBER.findall(area))
        for name, against, pairs, area, *_ in (
            row for row in lines("benchmarks/learning/results/preregistered.md") if len(row) == 5
        )
    }
    compared = 0
    for place, *said in lines(MEASUREMENTS_OF_LEARNING):
        name, comma, _ = place.partition(", ")
        for anchor, figures in zip(("loglinear",), said, strict=False):
            pairs, area = known.get((f"{name}-{anchor}", name), ("0", []))
            if comma and pairs == "10":
                compared += 1
                assert NUMBER.findall(figures) == area, (name, anchor)
            elif comma and area:
                assert figures == "incomplete"
    of_anchors = [key for key in known if key[0].removeprefix(f"{key[1]}-") == "loglinear"]
    assert compared == sum(known[key][0] == "10" for key in of_anchors)


def test_advice_of_loglinear_names_what_it_has_cost():
    (row,) = (
        row
        for row in lines("benchmarks/learning/results/preregistered.md")
        if row[:2] == ["world-ppo-1-lag1-spread-loglinear", "world-ppo-1-lag1-spread"]
    )
    difference, low, high = NUMBER.findall(row[3])
    assert f"{COUNTS[int(row[2])]} seeds" in LOGLINEAR_PRICE
    assert f"{difference} % of the area under the success curve [{low}, {high}]" in LOGLINEAR_PRICE


def test_the_table_of_both_hosts_is_that_of_its_runs():
    results = json.loads((SCHEDULES / "hosts.json").read_text())
    made = hosts.table(results, list(hosts.cells(3, 12)))
    known = {
        tuple(cells[:2]): NUMBER.findall(" ".join(cells[2:4] if cells[1] != "off" else cells[2:3]))
        for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in made.splitlines())
    }
    said = {
        (row[0].lower(), row[1].split(",")[0]): NUMBER.findall(" ".join(row[2:]))
        for row in lines(MEASUREMENTS)
        if row[0] in ("RLinf", "veRL") and len(row) == 4
    }
    assert said == {key: known[key] for key in said}
    assert len(said) == 4


def test_the_table_of_equivalence_is_that_of_its_runs():
    known = {(row["task"], row["algorithm"]): row for row in read("equivalence") if row["host"] == "both"}
    said = [
        row
        for row in lines(MEASUREMENTS_OF_LEARNING)
        if len(row) == 5 and row[0].endswith((", PPO", ", GRPO"))
    ]
    assert len(said) == len(known)
    for place, synchronous, difference, margin, verdict in said:
        task, algorithm = place.split(", ")
        row = known[f"{task}-v3", algorithm.lower()]
        full = row["full_mean"] - row["sync_mean"]
        assert float(synchronous) == round(row["sync_mean"], 3)
        assert [float(n) for n in NUMBER.findall(difference)] == [
            round(number, 3) for number in (full, row["ci_low"], row["ci_high"])
        ]
        assert float(margin) == round(row["margin"], 3)
        assert verdict.startswith("equivalent") == row["equivalent"]
