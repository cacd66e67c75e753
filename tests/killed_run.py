"""A process that trains a small cell of the study and kills itself at a given moment; run by test_study."""

import os
import signal
import sys
from dataclasses import replace
from types import MappingProxyType

from gdro import arms, study

CYCLES = 5
SMALL = replace(
    arms.SCALES["tiny-s"], prompts=8, cycles=CYCLES, save_every=4, max_completion=12, eval_samples=2
)


def make_small():
    """The scale "tiny-s" of this process with eight prompts a cycle and a checkpoint every fourth step."""
    small = MappingProxyType({**arms.SCALES, "tiny-s": SMALL})
    arms.SCALES = study.SCALES = small


def die_at(step, moment):
    """Kill this process when it has recorded ``step``, "flushed" or not."""
    from gdro.recorder import Recorder

    before = Recorder.on_log

    def on_log(self, args, state, control, logs=None, **kwargs):
        before(self, args, state, control, logs, **kwargs)
        if state.global_step == step:
            if moment == "flushed":
                self.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    Recorder.on_log = on_log


if __name__ == "__main__":
    arm, store, step, moment = sys.argv[1:]
    make_small()
    die_at(int(step), moment)
    study.train_cell("tiny-s", arm, 0, store, progress="none")
