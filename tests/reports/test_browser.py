"""The page in a real browser, from a file in an awkwardly named folder."""

import json
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from reports.output import write_report

pytestmark = pytest.mark.browser
CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"


@pytest.fixture(scope="module")
def address(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "ruñs dir [x]"
    write_report(folder, files | {"fits.json": b"{}"})
    return (folder / "index.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not (Path(CHROMIUM).exists() and Path(DRIVER).exists()):
        pytest.skip(f"needs {CHROMIUM} and {DRIVER}: install the packages chromium and chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, which the dev extra installs")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which(CHROMIUM) or CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
        *("disable-component-update", "disable-sync", "disable-dev-shm-usage", f"user-data-dir={profile}"),
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def open_at(browser, address, width):
    """Open the page in a viewport of exactly `width` CSS pixels (a window cannot be narrower than about 500)."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(address)
    assert browser.execute_script("return window.innerWidth") == width


def test_it_opens_without_errors_and_asks_for_nothing_else(browser, address):
    browser.get_log("browser")
    browser.get_log("performance")
    open_at(browser, address, 1280)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    # The browser's own first tab may still be loading its parts.
    asked = {one["request"]["url"] for one in requests if not one["documentURL"].startswith("chrome:")}
    assert {url for url in asked if not url.startswith("data:")} == {address}
    assert browser.title == "isoloss: demo"


def test_every_figure_has_a_size(browser, address):
    open_at(browser, address, 1280)
    sizes = browser.execute_script(
        "return [...document.images].map(i => [i.complete, i.naturalWidth, i.naturalHeight, i.width, i.alt])"
    )
    assert len(sizes) == 5
    for complete, natural_width, natural_height, width, alt in sizes:
        assert complete
        assert min(natural_width, natural_height, width) > 100, alt


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(browser, address, width):
    open_at(browser, address, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    wide = browser.execute_script(
        "return [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll')"
        " && e.getBoundingClientRect().right > window.innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []


def test_links_lead_to_files_that_exist(browser, address):
    open_at(browser, address, 1280)
    links = browser.execute_script("return [...document.links].map(a => a.href).filter(h => h.startsWith('file:'))")
    assert len(links) == 16
    assert [link for link in links if not Path(unquote(urlsplit(link).path)).is_file()] == []
