"""A plugin of pytest that appends a JSON object for each result to the file that RUN_TESTS_REPORT names.

`name`, `outcome` (passed, failed, skipped, error), `seconds`, and for what failed `message`, `file` and `line`, the
place that the test's own traceback ends at.
"""

import json
import os

OUT = open(os.environ["RUN_TESTS_REPORT"], "a", encoding="utf-8")
MOST = 4000


def say(report, outcome, seconds):
    record = {"name": report.nodeid, "outcome": outcome, "seconds": seconds}
    if outcome in ("failed", "error"):
        text, crash = str(report.longrepr or ""), getattr(report.longrepr, "reprcrash", None)
        record["message"] = (crash.message if crash else text)[:MOST]
        if crash:
            record["file"], record["line"] = os.path.relpath(crash.path), crash.lineno
    OUT.write(json.dumps(record) + "\n")
    OUT.flush()


SECONDS = {}


def pytest_runtest_logreport(report):
    SECONDS[report.nodeid] = SECONDS.get(report.nodeid, 0.0) + report.duration
    if report.when != "call" and report.passed:
        if report.when == "teardown":
            SECONDS.pop(report.nodeid, None)
        return
    # An expected failure counts as skipped, also for pytest: it says nothing of the project's state.
    outcome = "error" if report.failed and report.when != "call" else report.outcome
    say(report, outcome, SECONDS[report.nodeid])


def pytest_collectreport(report):
    if report.failed:
        say(report, "error", None)
