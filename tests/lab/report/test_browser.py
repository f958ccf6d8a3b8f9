"""The page in a real browser: it is drawn, fits, and complains about nothing."""

import shutil

import pytest

from tests.lab.report.making import metrics, write_run

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SIZES = [(width, scheme) for width in (1280, 420) for scheme in ("light", "dark")]


HELD = {
    "time": 0.0,
    "step": 1,
    "total": 2,
    "holds": {
        "env worker 0": {
            "memory": {"value": 12.3e9, "limit": 64e9, "per_minute": 6.1e8},
            "descriptors": {"value": 120, "limit": 1024, "per_minute": 0.1},
            "threads": {"value": 34, "limit": 4096, "per_minute": 0.0},
            "address space": {"value": 40.2e9, "limit": 99e9, "per_minute": 6.1e8},
        },
        "the run": {
            "shared memory": {"value": 2.1e9, "limit": 4e9, "per_minute": -1e8},
            "disk": {"value": 5.5e9, "limit": 90e9},
        },
    },
    "foretold": {"env worker 0, memory": "env worker 0: its use of memory grows by 610 MB a minute"},
}
"""A status with processes of which one grows."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("there is no Chromium with its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    pytest.importorskip("jinja2", reason="the report needs it: pip install 'rlinf-async[report]'")
    from rlinf_async.lab.report.page import write_report

    directory = tmp_path_factory.mktemp("pages")
    one = write_run(directory, name="one", status=HELD)
    two = write_run(
        directory, name="a-second-run-with-a-long-name", lines=[metrics(s, env__return=1.0) for s in (1, 2)]
    )
    bare = write_run(directory, name="bare", lines=[], trace={}, summary={})
    return {
        "one": write_report([one], directory / "one.html"),
        "two": write_report([one, two], directory / "two.html"),
        "bare": write_report([bare], directory / "bare.html"),
    }


def show(browser, page, width, scheme):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())


def ask(browser, expression):
    return browser.execute_script(f"return {expression}")


@pytest.mark.parametrize("name", ["one", "two", "bare"])
@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_a_page_is_drawn_fits_and_complains_about_nothing(browser, pages, name, width, scheme):
    show(browser, pages[name], width, scheme)
    assert browser.get_log("browser") == []
    assert ask(browser, "document.documentElement.scrollWidth") <= width
    assert ask(browser, "document.body.scrollWidth") <= width
    places = ask(browser, "document.querySelectorAll('.plot, .rows').length")
    assert (places > 12) == (name != "bare")
    small = """[...document.querySelectorAll('.plot svg, .canvas')].filter(
        place => place.getBoundingClientRect().width < 100 || place.getBoundingClientRect().height < 20
    ).length"""
    assert ask(browser, small) == 0


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_no_figure_is_wider_than_its_place(browser, pages, width, scheme):
    show(browser, pages["two"], width, scheme)
    wider = """[...document.querySelectorAll('.plot svg, .rows')].filter(drawn => {
        const own = drawn.getBoundingClientRect();
        const place = drawn.closest('figure').getBoundingClientRect();
        return own.left < place.left - 1 || own.right > place.right + 1;
    }).length"""
    assert ask(browser, wider) == 0


@pytest.mark.parametrize("width", [1280, 420])
def test_no_two_labels_of_an_axis_overlap(browser, pages, width):
    show(browser, pages["one"], width, "light")
    overlaps = """[...document.querySelectorAll('.x')].filter(axis => {
        const boxes = [...axis.children].map(label => label.getBoundingClientRect());
        return boxes.some((box, at) => at && box.left < boxes[at - 1].right);
    }).map(axis => axis.closest('figure').innerText)"""
    assert ask(browser, overlaps) == []


def test_a_time_line_can_be_made_wider_than_the_page_which_stays_as_wide(browser, pages):
    show(browser, pages["one"], 1280, "light")
    width = "document.querySelector('.rows:has(.zoom) .canvas').getBoundingClientRect().width"
    before = ask(browser, width)
    browser.execute_script("document.querySelector('.zoom input').click()")
    assert ask(browser, width) > 7 * before
    assert ask(browser, "document.documentElement.scrollWidth") <= 1280


@pytest.mark.parametrize(("scheme", "bright"), [("light", False), ("dark", True)])
def test_ink_stands_out_from_the_paper_in_both_schemes(browser, pages, scheme, bright):
    show(browser, pages["one"], 1280, scheme)
    for ink in (
        "getComputedStyle(document.body).color",
        "getComputedStyle(document.querySelector('.y li')).color",
    ):
        levels = [int(level) for level in ask(browser, ink).strip("rgb()").split(",")]
        assert (sum(levels) / 3 > 128) == bright, ink


def test_a_page_is_whole_without_javascript(browser, pages):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(pages["one"].as_uri())
    drawn = browser.find_elements("css selector", ".plot svg")
    text = browser.find_element("css selector", "body").text
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "The learner bounds this run" in text
    assert len(drawn) > 8


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_what_processes_hold_is_a_table_whose_cells_are_in_its_place_and_say_the_growth(
    browser, pages, width, scheme
):
    show(browser, pages["one"], width, scheme)
    section = browser.find_element("css selector", "#resources")
    cells = """[...document.querySelectorAll('#resources tr')].map(
        row => [...row.children].map(cell => cell.textContent.trim()))"""
    words = ask(browser, cells)
    assert words[1][:4] == ["env worker 0", "12.3 GB, +610 MB a minute", "120, steady", "34, steady"]
    assert words[2][-2:] == ["2.1 GB, -100 MB a minute", "5.5 GB"]
    assert "env worker 0: its use of memory grows by 610 MB a minute" in section.text
    overlapping = """[...document.querySelectorAll('#resources tr')].filter(row => {
        const boxes = [...row.children].map(cell => cell.getBoundingClientRect());
        return boxes.some((box, at) => at && box.left < boxes[at - 1].right - 1);
    }).length"""
    assert ask(browser, overlapping) == 0
