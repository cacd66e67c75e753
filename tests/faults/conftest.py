"""Processes that are to be killed are forked from one that has imported what they need."""

import pytest
from killing import CONTEXT


@pytest.fixture(scope="session", autouse=True)
def server(request):
    """torch is imported there only where a test of the long suite is to run."""
    long = any(item.get_closest_marker("faults") for item in request.session.items)
    CONTEXT.set_forkserver_preload(["gdro.training", "gdro.study"] if long else ["gdro.run_writer"])
