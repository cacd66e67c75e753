"""A rank of a recipe's run whose last rank fails in its reward function: ``rank_worker.py RECIPE FAULT``.

FAULT "raises", "dies" or "straggles". Each rank leaves its process number in the run's folder, and the one
that fails the time.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch

from gdro import finite_rewards, train
from gdro.recipe import REWARDS, recipe


def failing(rank, fault, folder):
    """The math grader, which fails on rank 1 in its second generation."""
    grade, calls = REWARDS["math"], []

    def last_rank_fails(completions, **kwargs):
        calls.append(len(completions))
        if rank == 1 and len(calls) == 2:
            (folder / "failed-at").write_text(repr(time.time()))
            if fault == "raises":
                raise ConnectionError("the grader of rank 1 is down")
            if fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
        return grade(completions, **kwargs)

    return last_rank_fails


if __name__ == "__main__":
    path, fault = sys.argv[1:]
    rank = int(os.environ["RANK"])
    folder = Path(recipe(path)["output_dir"]).parent
    (folder / f"process-{rank}").write_text(str(os.getpid()))
    REWARDS["math"] = failing(rank, fault, folder)
    finite_rewards.PATIENCE = 3.0
    # transformers hands ddp_timeout on to GPUs, not to a run with use_cpu
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=15))
    train.main(["--config", path])
