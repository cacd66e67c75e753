"""A GRPOTrainer whose resumed run equals the run that never stopped, wherever it was cut.

What plain TRL leaves out and is saved here: the sampler's generator in later epochs, the count of
micro-batches, the buffered generations inside a cycle, metrics and losses not yet logged. Checkpoints are
written so that a kill at any moment leaves a complete one (`gdro.checkpoints`).
"""

import contextlib
import logging
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from trl import GRPOTrainer

from gdro import checkpoints

logger = logging.getLogger(__name__)

_TORCH_CANNOT_WRITE = (
    "inline_container",
    "iostream error",
    "Parent directory",
)  # in torch.save's RuntimeError

_CYCLE_SETTINGS = (
    "seed",
    "num_generations",
    "generation_batch_size",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "num_iterations",
    "world_size",
    "shuffle_dataset",
    "loss_type",
    "beta",
    "epsilon",
    "epsilon_high",
    "scale_rewards",
    "multi_objective_aggregation",
    "importance_sampling_level",
)


class ResumableGRPOTrainer(GRPOTrainer):
    """GRPOTrainer with exact resuming; trains as GRPOTrainer does.

    ``train(resume_from_checkpoint=True)`` takes the newest complete checkpoint and names the others.
    ``save_total_limit=1`` is raised to 2: with one kept, a kill while the next is written leaves none.

    Errors: ``ValueError`` from ``train``, before anything is loaded, for a checkpoint that is not complete,
    lacks the state written here, is damaged, was written under other settings, or has no optimiser state.
    ``OSError`` where a checkpoint cannot be written; the one before it stays whole.
    """

    def __init__(self, *args, **kwargs):
        self._finished_epochs = 0
        self._loss_window = None
        super().__init__(*args, **kwargs)
        if self.args.save_total_limit == 1:
            logger.warning(
                "save_total_limit=1 raised to 2, so that a kill during a save leaves a whole checkpoint"
            )
            self.args.save_total_limit = 2

    # what subclasses save besides

    def _settings(self):
        return {name: getattr(self.args, name) for name in _CYCLE_SETTINGS}

    def _shared_state(self):
        return {"settings": self._settings(), "save_only_model": bool(self.args.save_only_model)}

    def _load_shared_state(self, state):
        """Take over what `_shared_state` gave; refuse, changing nothing, what does not fit."""

    def _rank_state(self):
        inside = self._step % self.args.cycle_length != 0
        return {
            "step": self._step,
            "epochs": int(self.state.epoch),
            "buffer": _to_arrays(self._buffered_inputs) if inside else None,
            "metrics": {name: list(values) for name, values in self._metrics["train"].items()},
            "loss": self._tr_loss.item(),
            "last_logged": self._globalstep_last_logged,
            "completions": self._completions_table() if self.args.log_completions else None,
        }

    def _load_rank_state(self, state):
        self._step = state["step"]
        self._finished_epochs = state["epochs"]
        self._buffered_inputs = _to_tensors(state["buffer"], self.accelerator.device)
        self._metrics["train"].clear()
        self._metrics["train"].update(state["metrics"])
        self._loss_window = (state["loss"], state["last_logged"])
        if state["completions"] is not None:
            self._load_completions_table(state["completions"])

    def _completions_table(self):
        names = ("prompt", "completion", "advantages")
        nested = {
            name: {key: list(values) for key, values in self._logs[name].items()}
            for name in ("rewards", "extra")
        }
        return {name: list(self._logs[name]) for name in names} | nested

    def _load_completions_table(self, table):
        for name, values in table.items():
            if isinstance(values, dict):
                for key, column in values.items():
                    self._logs[name][key].extend(column)
            else:
                self._logs[name].extend(values)

    # resuming

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """As ``Trainer.train``; True resumes from the newest complete checkpoint of ``output_dir``."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = checkpoints.latest_complete(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(
                    f"no complete checkpoint in {self.args.output_dir}; "
                    "call train() without resume_from_checkpoint to start"
                )
        if resume_from_checkpoint:
            self._restore(resume_from_checkpoint)
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._finished_epochs = 0

    def _restore(self, folder):
        shared = checkpoints.read_state(folder, checkpoints.STATE)
        reason = checkpoints.why_incomplete(folder)
        if reason is not None:
            raise ValueError(
                f"{folder} is not a complete checkpoint: {reason}; the newest complete one is found by "
                f"gdro.checkpoints.latest_complete({str(Path(folder).parent)!r})"
            )
        if self.args.should_save:  # one process reads it all, not each
            checkpoints.refuse_damaged(folder)
        checkpoints.check_settings(shared["settings"], self._settings())
        rank = checkpoints.read_state(folder, checkpoints.rank_name(self.args.process_index))
        if shared["save_only_model"]:
            raise ValueError(
                f"{folder} was written with save_only_model=True and has no optimiser state, so training "
                "cannot go on from it; load it as a model, or train with save_only_model=False"
            )
        self._load_shared_state(shared)
        self._load_rank_state(rank)

    def _get_train_sampler(self, dataset=None):
        sampler = super()._get_train_sampler(dataset)
        if self.shuffle_dataset:
            for _ in range(self._finished_epochs):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def training_step(self, *args, **kwargs):
        """As the parent's; the first step after resuming takes up the losses that were not logged yet."""
        if self._loss_window is not None:
            loss, self._globalstep_last_logged = self._loss_window
            self._tr_loss.fill_(loss)
            self._loss_window = None
        return super().training_step(*args, **kwargs)

    # saving

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        with named_if_not_written(folder):
            if self.args.should_save:
                checkpoints.remove_marker(folder)
                self._remove_torn(folder)
                checkpoints.write_state(folder, checkpoints.STATE, self._shared_state())
            checkpoints.write_state(
                folder, checkpoints.rank_name(self.args.process_index), self._rank_state()
            )
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                checkpoints.write_marker(folder, self.state.global_step)

    def _remove_torn(self, keep):
        """A torn checkpoint of ours would take the place of a whole one when old ones are rotated away."""
        if self.args.save_total_limit is None:
            return
        for folder, reason in checkpoints.torn_folders(keep.parent).items():
            if folder != keep and (folder / f"{checkpoints.STATE}.json").is_file():
                logger.warning("removing the incomplete checkpoint %s: %s", folder, reason)
                shutil.rmtree(folder)


@contextlib.contextmanager
def named_if_not_written(folder):
    """Turn what the writers of the block raise on a full, read-only or vanished disk into one ``OSError``
    that says what is left."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _TORCH_CANNOT_WRITE):
            raise
        left = "make room, or the folder writable, and resume: an earlier complete checkpoint is as it was"
        if not folder.parent.exists():
            left = "the folder it is in was removed meanwhile: let nobody remove it, and start the run again"
        raise OSError(f"{folder} was not written ({error}); {left}") from error


def _to_arrays(value):
    """Tensors inside lists and dictionaries as NumPy arrays; bfloat16, which NumPy lacks, as its bits."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            return {"bfloat16": value.view(torch.int16).numpy()}
        return {"tensor": value.numpy()}
    if isinstance(value, dict):
        return {"dict": {key: _to_arrays(item) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_to_arrays(item) for item in value]
    return value


def _to_tensors(value, device):
    if isinstance(value, dict):
        if "bfloat16" in value:
            return torch.from_numpy(value["bfloat16"]).view(torch.bfloat16).to(device)
        if "tensor" in value:
            return torch.from_numpy(value["tensor"]).to(device)
        return {key: _to_tensors(item, device) for key, item in value["dict"].items()}
    if isinstance(value, list):
        return [_to_tensors(item, device) for item in value]
    return value
