"""The page in a real browser: it is drawn, fits, and complains about nothing."""

import shutil
import time

import pytest

from tests.report.making import metrics, write_run

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
PATIENCE_S = 120


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
    pytest.importorskip("plotly", reason="the report needs it: pip install 'rlinf-async[report]'")
    from rlinf_async.report.page import write_report

    directory = tmp_path_factory.mktemp("pages")
    one = write_run(directory, name="one")
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
    give_up = time.monotonic() + PATIENCE_S
    while not browser.execute_script("return document.documentElement.hasAttribute('data-drawn')"):
        assert time.monotonic() < give_up, browser.get_log("browser")
        time.sleep(0.1)


def ask(browser, expression):
    return browser.execute_script(f"return {expression}")


@pytest.mark.parametrize("name", ["one", "two", "bare"])
@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_a_page_is_drawn_fits_and_complains_about_nothing(browser, pages, name, width, scheme):
    show(browser, pages[name], width, scheme)
    assert browser.get_log("browser") == []
    assert ask(browser, "document.documentElement.scrollWidth") <= width
    assert ask(browser, "document.body.scrollWidth") <= width
    places = ask(browser, "document.querySelectorAll('.plot').length")
    assert ask(browser, "document.querySelectorAll('.plot:has(.main-svg)').length") == places
    assert (places > 8) == (name != "bare")


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_no_figure_is_wider_than_its_place(browser, pages, width, scheme):
    show(browser, pages["two"], width, scheme)
    wider = """[...document.querySelectorAll('.plot')].filter(
        place => place.querySelector('.main-svg').getBoundingClientRect().width > place.clientWidth + 1
    ).length"""
    assert ask(browser, wider) == 0


@pytest.mark.parametrize(("scheme", "bright"), [("light", False), ("dark", True)])
def test_ink_stands_out_from_the_paper_in_both_schemes(browser, pages, scheme, bright):
    show(browser, pages["one"], 1280, scheme)
    for ink in (
        "getComputedStyle(document.body).color",
        "getComputedStyle(document.querySelector('.ytick text')).fill",
    ):
        levels = [int(level) for level in ask(browser, ink).strip("rgb()").split(",")]
        assert (sum(levels) / 3 > 128) == bright, ink


def test_tables_say_the_same_without_javascript(browser, pages):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(pages["one"].as_uri())
    text = browser.find_element("css selector", "body").text
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "The learner bounds this run" in text
    assert "switched off" in text
