"""Shared by all tests: browser and SLURM tests that may not be skipped where CI says so."""

import os

import pytest

REQUIRED = {  # marker: (variable that forbids to skip, what to do)
    "browser": ("ISOLOSS_REQUIRE_BROWSER", "install Chromium"),
    "slurm": ("ISOLOSS_REQUIRE_SLURM", "install slurm-wlm, slurmdbd, mariadb-server and munge, and be root"),
}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    for marker, (variable, remedy) in REQUIRED.items():
        if report.skipped and item.get_closest_marker(marker) and os.environ.get(variable):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped, but {variable} is set: {remedy}"
