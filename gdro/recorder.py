"""The callback that writes a training run into the run store, always ahead of its checkpoints."""

import math
import time

from transformers import TrainerCallback

_KEPT_OUT = ("epoch", "step_time", "num_tokens", "gdro/total_rollouts", "gdro/total_completion_tokens")


class Recorder(TrainerCallback):
    """Turns what a `GDROTrainer` logs into rows of ``steps`` and ``bins``.

    A row a step; a row a bin for the cycle that a step ends. That step's row also holds what became of each
    prompt of the cycle (`gdro.report.prompt_lists`). What a checkpoint holds is on disk before the
    checkpoint is (TRL logs a step before it saves it), so a run that is killed anywhere resumes with a whole
    record. Two columns depend on the clock: ``seconds``, since the step before, and ``controller_seconds``,
    the controller's own for the cycle that the step ends (plan and observe).
    """

    def __init__(self, writer, trainer, progress):
        self.writer, self.trainer, self.progress = writer, trainer, progress
        self._seen, self._at, self._reward = trainer.controller.cycle, time.monotonic(), math.nan
        self._spent = writer.manifest["wall_seconds"]

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock; a resumed trainer has its cycle back by now."""
        self._seen, self._at = self.trainer.controller.cycle, time.monotonic()

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Record the step just made, and flush where a checkpoint follows."""
        if logs is None or "loss" not in logs:  # the summary at the end of a training
            return
        controller = self.trainer.controller
        cycle = controller.cycle
        ended, self._seen = cycle > self._seen, cycle
        now = time.monotonic()
        seconds, self._at = now - self._at, now
        self._spent += seconds
        row = {"step": state.global_step, "cycle": cycle - ended, "reward": math.nan}
        row |= {_column(k): v for k, v in logs.items() if _is_kept(k, v)}
        row |= {
            "rollouts_total": self.trainer.total_rollouts,
            "tokens_total": self.trainer.total_completion_tokens,
            "seconds": seconds,
        }
        if ended:
            row |= {"controller_seconds": controller.seconds, **controller.prompt_lists()}
        rows = controller.log_rows() if ended else ()
        self.writer.append(row, rows)
        self._reward = row["reward"] if not math.isnan(row["reward"]) else self._reward
        self.progress.update(state.global_step, f"reward {self._reward:.3f}")
        self.progress.record(row, rows)
        if control.should_save:
            self.flush()

    def flush(self):
        """Put the record on disk with the counts so far."""
        self.writer.flush(**self.facts())

    def facts(self) -> dict:
        """Wall time of all starts of the run (s), rollouts and completion tokens so far."""
        return {
            "wall_seconds": self._spent,
            "rollouts": self.trainer.total_rollouts,
            "tokens": self.trainer.total_completion_tokens,
        }


def _is_kept(key, value):
    return key not in _KEPT_OUT and not key.startswith("gdro/bin_") and isinstance(value, (int, float))


def _column(key):
    return key.removeprefix("gdro/").replace("/", "_")
