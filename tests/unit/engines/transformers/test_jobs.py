"""Jobs between steps."""

from __future__ import annotations

import pytest

from enginebay.engines.transformers.jobs import Job, Jobs
from enginebay.errors import EngineFailed


def test_a_job_waits_for_the_adapter_that_is_in_use() -> None:
    jobs, done = Jobs(), []
    jobs.add(Job(lambda: done.append("delete"), after="a"))
    jobs.add(Job(lambda: done.append("load")))
    jobs.run(lambda: {"a", None})
    assert done == ["load"]
    jobs.run(lambda: {"b"})
    jobs.run(set)
    assert done == ["load", "delete"]


def test_what_goes_wrong_reaches_who_asked_and_stops_nobody() -> None:
    def fail() -> None:
        raise ValueError("no")

    jobs, done = Jobs(), []
    bad, good = Job(fail), Job(lambda: done.append(1))
    jobs.add(bad)
    jobs.add(good)
    jobs.run(set)
    with pytest.raises(ValueError, match="no"):
        bad.done.result(0)
    assert good.done.result(0) is None
    assert done == [1]


def test_who_waits_when_the_engine_stops_is_told() -> None:
    jobs = Jobs()
    job = Job(lambda: None, after="a")
    jobs.add(job)
    jobs.give_up(EngineFailed("stopped"))
    with pytest.raises(EngineFailed):
        job.done.result(0)
