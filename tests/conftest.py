"""Shared by all tests: browser tests that may not be skipped where CI says so."""

import os

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.skipped and item.get_closest_marker("browser") and os.environ.get("ISOLOSS_REQUIRE_BROWSER"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, but ISOLOSS_REQUIRE_BROWSER is set: install Chromium"
