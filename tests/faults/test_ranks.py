"""Two ranks, of which one raises, dies or never comes back: both are gone within a minute, what is seen last
is the error of the one that failed, and the run goes on from its checkpoint.

On the CPU, with gloo and a timeout of 15 s; a run's own is ``ddp_timeout``, half an hour where it is not set.
NCCL is not tried here.
"""

import os
import sys
import time
from pathlib import Path

import pytest
import stand_in
import yaml

from gdro import train
from gdro.checkpoints import latest_complete, refuse_damaged

WORKER = Path(__file__).with_name("rank_worker.py")
FAULTS = {
    "raises": "ConnectionError: the grader of rank 1 is down",
    "dies": r"Signal 9 (SIGKILL) received by PID",
    "straggles": "the reward function 'last_rank_fails' has taken more than 3 s so far",
}


def is_there(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_fails_takes_the_others_with_it_and_its_error_is_seen(
    tmp_path, capfd, monkeypatch, fault
):
    path = stand_in.make(tmp_path)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(values | {"generations": 2}), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    with pytest.raises(train.TrainingStopped, match="checkpoint-3 is complete: resume=true goes on from it"):
        train.follow([*starter, str(WORKER), str(path), fault], tmp_path / "run")
    assert time.time() - float((tmp_path / "failed-at").read_text()) < 60
    for rank in (0, 1):
        assert not is_there(int((tmp_path / f"process-{rank}").read_text()))
    log = capfd.readouterr().out
    assert FAULTS[fault] in log
    if fault != "straggles":
        root = log.rpartition("Root Cause (first observed failure)")[2]
        assert "(local_rank: 1)" in root.split("exitcode")[0]
        assert FAULTS[fault] in root
    refuse_damaged(latest_complete(tmp_path / "run"))
