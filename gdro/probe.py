"""What a few cycles of training show of the surrogate signal, by bins of known pass rate (torch)."""

import tempfile

import numpy as np
import pandas as pd
from transformers import PrinterCallback, TrainerCallback

from gdro import checks
from gdro.config import GDROConfig
from gdro.progress import calm, no_bars
from gdro.trainer import GDROTrainer
from gdro.training import load

COLUMN = "known_bin"


class CycleRows(TrainerCallback):
    """Keeps `gdro.controller.Controller.log_rows` of every cycle that a trainer ends, in ``rows``."""

    def __init__(self, controller):
        self.controller, self.rows, self._seen = controller, [], controller.cycle

    def on_step_end(self, args, state, control, **kwargs):
        """Take the rows of the cycle that this step ended, if it ended one."""
        if self.controller.cycle > self._seen:
            self._seen = self.controller.cycle
            self.rows += self.controller.log_rows()


@calm()
def surrogate_rows(folder, dataset, bins, reward_func, settings, *, minibatches=1, passes=1):
    """Train plain GRPO for a few cycles and return what the surrogate signal (6) was in each bin.

    No adversary acts; the controller only watches. A cycle makes one optimiser step on each of
    ``minibatches`` parts of its rows, ``passes`` times over; with one of each, every ratio is 1.

    Args: ``folder`` of the model to start from, which stays as it is; ``dataset`` of N prompts; ``bins`` (N,)
    known bin of each, integers >= 0, fixed for the run; ``settings`` fields of GDROConfig as
    `gdro.arms.settings` gives them, whose ``max_steps`` and ``steps_per_generation`` count the cycles and
    whose rows a cycle are kept. Returns a frame with the columns of `gdro.report.bin_rows`, a row a cycle and
    bin. Raises ``ValueError`` where a cycle's rows cannot be cut into ``minibatches``.
    """
    checks.whole_number("minibatches", minibatches, low=1)
    checks.whole_number("passes", passes, low=1)
    bins = checks.integer_array("bins", bins, low=0, size=len(dataset))
    known, number = np.unique(bins, return_inverse=True)
    cycles = settings["max_steps"] // settings["steps_per_generation"]
    rows = settings["per_device_train_batch_size"] * settings["steps_per_generation"]
    if rows % minibatches:
        raise ValueError(f"{rows} rows a cycle cannot be cut into {minibatches} equal minibatches")
    changes = {
        "per_device_train_batch_size": rows // minibatches,
        "steps_per_generation": minibatches,
        "num_iterations": passes,
        "max_steps": cycles * minibatches * passes,
        "save_strategy": "no",
        "signal": "surrogate",
        "bin_column": COLUMN,
    }
    data = dataset.add_column(COLUMN, [f"{b:06d}" for b in number])
    with tempfile.TemporaryDirectory() as scratch, no_bars():
        model, tokenizer = load(folder)
        fixed = {"output_dir": scratch, "report_to": "none", "disable_tqdm": True}
        args = GDROConfig(**{**settings, **changes, **fixed})
        trainer = GDROTrainer(model, reward_func, args, data, processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        kept = CycleRows(trainer.controller)
        trainer.add_callback(kept)
        trainer.train()
    frame = pd.DataFrame(kept.rows).drop(columns="arm_probabilities")
    return frame.assign(bin=known[frame["bin"]])


def mean_by_bin(rows):
    """Mean of the signal over all prompts visited in a bin, with its standard error over these visits.

    ``rows`` from `surrogate_rows`. Returns a frame indexed by bin with prompts (visits), pass_rate, mean and
    error; a bin that was never visited has no row.
    """
    seen = rows[rows["prompts"] > 0]
    weighted = seen.assign(
        pass_rate=seen["pass_rate"] * seen["prompts"],
        mean=seen["loss_mean"] * seen["prompts"],
        square=(seen["loss_std"] ** 2 + seen["loss_mean"] ** 2) * seen["prompts"],
    )
    sums = weighted.groupby("bin")[["prompts", "pass_rate", "mean", "square"]].sum()
    table = sums[["pass_rate", "mean"]].div(sums["prompts"], axis=0)
    spread = np.sqrt((sums["square"] / sums["prompts"] - table["mean"] ** 2).clip(lower=0))
    return table.assign(error=spread / np.sqrt(sums["prompts"])).assign(prompts=sums["prompts"])
