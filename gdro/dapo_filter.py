"""The dapo-filter baseline: rollout groups without reward variance are dropped and refilled with fresh
prompts.

DAPO (Yu et al., arXiv 2503.14476, section 3.2, "dynamic sampling"). Every rollout generated counts, also
those of dropped groups.
"""

import math

import numpy as np
import torch
from torch import nn
from transformers import TrainerCallback

from gdro import advantages as adv
from gdro.config import GDROConfig
from gdro.controller import Controller
from gdro.trainer import GDROTrainer

_PADDED_LEFT = ("prompt_ids", "prompt_mask")
_PADDED_RIGHT = (
    "completion_ids",
    "completion_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
    "tool_mask",
)
_STREAM = 0xDA90


class FilteredGRPOTrainer(GDROTrainer):
    """GRPO in which every rollout group of the batch has reward variance, as far as ``max_rounds`` allows.

    The generation batch is generated as planned; for each group whose scored rewards are all equal a fresh
    prompt is drawn from a seeded stream over the data set and generated, again and again, until the batch is
    full or ``max_rounds`` extra generations were made. Then the last zero-variance groups stay (their
    advantages are 0), which is logged (``gdro/filter_kept_flat``). The controller observes every group that
    was generated, so pass rates are not biased by the filter; it only logs, with signal "error".

    Departures from DAPO: fresh prompts come from a stream of their own, so that the order of the planned
    prompts is that of the other study arms; rounds are bounded. TRL's own reward metrics are means over the
    rounds. On several processes a round may draw a few prompts more, so that each generates equally many
    rows; they count as all others.

    Args: as `GDROTrainer`, and ``max_rounds`` >= 0; ``rollout_budget``: stop at the end of the cycle that
    brings ``total_rollouts`` to it, or None.
    Errors: ``ValueError`` for an adversary turned on, and for a data set that is not map-style.
    """

    controller: Controller

    def __init__(self, *args, max_rounds=4, rollout_budget=None, **kwargs):
        if max_rounds < 0 or (rollout_budget is not None and rollout_budget < 1):
            raise ValueError(
                f"max_rounds={max_rounds} must be >= 0 and rollout_budget={rollout_budget} >= 1 or None"
            )
        self.max_rounds, self.rollout_budget, self.fresh_drawn = max_rounds, rollout_budget, 0
        super().__init__(*args, **kwargs)
        if self.controller is None:
            raise ValueError(
                "FilteredGRPOTrainer draws fresh prompts from a map-style datasets.Dataset, got "
                f"{type(self.train_dataset).__name__}. Load it whole"
            )
        if rollout_budget is not None:
            self.add_callback(_StopAtBudget(self))

    def _adopt(self, dataset, args: GDROConfig):
        if args.prompt_gdro or args.rollout_gdro:
            raise ValueError(
                "FilteredGRPOTrainer is a baseline of its own; turn prompt_gdro and rollout_gdro off"
            )
        args.signal = "error"  # no adversary sees it, and dropped rows have no loss
        return super()._adopt(dataset, args)

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        rows, inputs = self._take_rows(inputs)
        columns = list(inputs[0])
        batch, scores = self._generated(inputs)
        everything = [(rows, scores)]
        for _ in range(self.max_rounds):
            flat = torch.nonzero(~self._varies(scores))[:, 0]
            if not len(flat):
                break
            rows, inputs = self._fresh(self._shareable(len(flat)), columns)
            fresh, fresh_scores = self._generated(inputs)
            self._metrics["train"]["frac_reward_zero_std"].pop()
            everything.append((rows, fresh_scores))
            use = torch.nonzero(self._varies(fresh_scores))[: len(flat), 0]
            into, outof = self._rows_of(flat[: len(use)]), self._rows_of(use)
            scores[into] = fresh_scores[outof]
            own = self._own_rows(len(batch["prompt_ids"]))
            here = (into >= own.start) & (into < own.stop)
            fresh = self._of_all_processes(fresh)
            batch = _merged(batch, fresh, into[here] - own.start, outof[here], self._tokenizer.pad_token_id)
        return self._finish(batch, scores, everything)

    def _finish(self, batch, scores, everything):
        """Advantages over the final batch, and a cycle of every group that was generated."""
        metrics = self._metrics["train"]
        metrics["gdro/filter_rounds"].append(len(everything) - 1)
        metrics["gdro/filter_kept_flat"].append(int((~self._varies(scores)).sum()))
        sizes = torch.full((len(scores) // self.num_generations,), self.num_generations, device=scores.device)
        raw = self._raw_advantages(scores, sizes)
        batch["advantages"] = raw[self._own_rows(len(batch["prompt_ids"]))]
        mask = batch["completion_mask"] * batch.get("tool_mask", 1)
        batch["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()
        self._scores = torch.cat([part for _, part in everything])
        plan = self.controller.plan(self._prompt_of_row[np.concatenate([rows for rows, _ in everything])])
        self._check_same_everywhere(plan)
        self._open_cycle(plan, batch, batch["advantages"])
        return batch

    def _generated(self, inputs):
        """The parent's batch for ``inputs`` and a copy of its scores (rows, F)."""
        batch = super(GDROTrainer, self)._generate_and_score_completions(inputs)
        return batch, self._scores.clone()

    def _shareable(self, count):
        """``count`` rollout groups, or the few more that give every process equally many rows."""
        step = self.accelerator.num_processes // math.gcd(
            self.accelerator.num_processes, self.num_generations
        )
        return -(-count // step) * step

    def _of_all_processes(self, batch):
        """The rows of every process, padded alike; groups that are refilled may lie on another one."""
        if self.accelerator.num_processes == 1:
            return batch
        fill = _fill(self._tokenizer.pad_token_id)
        return {
            key: self.accelerator.gather(
                self.accelerator.pad_across_processes(
                    value, dim=1, pad_index=fill.get(key, 0), pad_first=key in _PADDED_LEFT
                )
            )
            for key, value in batch.items()
            if key in _PADDED_LEFT + _PADDED_RIGHT
        }

    def _varies(self, scores):
        """(groups,) bool: whether two scored rewards of the group differ."""
        rewards = adv.total_reward(scores, self.reward_weights).view(-1, self.num_generations)
        low = rewards.nan_to_num(nan=torch.inf).amin(dim=1)
        high = rewards.nan_to_num(nan=-torch.inf).amax(dim=1)
        return high > low

    def _rows_of(self, groups):
        """Rows of the rollout groups ``groups``, consecutive."""
        within = torch.arange(self.num_generations, device=groups.device)
        return (groups.unsqueeze(1) * self.num_generations + within).flatten()

    def _fresh(self, count, columns):
        """The next ``count`` rows of the stream, and this process's share of their inputs (``columns``)."""
        total = len(self.train_dataset)
        at = np.arange(self.fresh_drawn, self.fresh_drawn + count)
        orders = {epoch: self._order(epoch) for epoch in np.unique(at // total).tolist()}
        rows = np.array([orders[epoch][place] for epoch, place in zip(at // total, at % total, strict=True)])
        self.fresh_drawn += count
        examples = [self.train_dataset[int(row)] for row in rows]
        inputs = [
            {key: example[key] for key in columns}
            for example in examples
            for _ in range(self.num_generations)
        ]
        return rows, inputs[self._own_rows(len(inputs) // self.accelerator.num_processes)]

    def _order(self, epoch):
        return np.random.default_rng([self.args.seed, _STREAM, epoch]).permutation(len(self.train_dataset))

    def _settings(self):
        return super()._settings() | {"max_rounds": self.max_rounds}

    def _shared_state(self):
        return super()._shared_state() | {"fresh_drawn": self.fresh_drawn}

    def _load_shared_state(self, state):
        super()._load_shared_state(state)
        self.fresh_drawn = state["fresh_drawn"]


class _StopAtBudget(TrainerCallback):
    """Stops, and logs and saves, at the end of the cycle that spent the rollout budget."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_end(self, args, state, control, **kwargs):
        trainer = self.trainer
        if trainer.total_rollouts >= trainer.rollout_budget and trainer._cycle is None:
            control.should_training_stop = control.should_log = True
            control.should_save = args.save_strategy != "no"
        return control


def _merged(batch, fresh, into, outof, pad_token):
    """``batch`` with its rows ``into`` replaced by the rows ``outof`` of ``fresh``, both padded to the
    wider."""
    fill = _fill(pad_token)
    merged = {}
    for key, value in batch.items():
        if key in ("advantages", "num_items_in_batch"):
            merged[key] = value
            continue
        if key not in _PADDED_LEFT + _PADDED_RIGHT:
            raise ValueError(
                f"FilteredGRPOTrainer cannot refill batches with {key!r}; it takes text-only models"
            )
        width = max(value.shape[1], fresh[key].shape[1])
        left = key in _PADDED_LEFT
        merged[key] = _padded(value, width, fill.get(key, 0), left)
        merged[key][into] = _padded(fresh[key], width, fill.get(key, 0), left)[outof]
    return merged


def _fill(pad_token):
    """What stands in the padding of the tensors that are not padded with zeros."""
    return {
        "prompt_ids": pad_token,
        "completion_ids": pad_token,
        "tool_mask": 1,
        "importance_sampling_ratio": 1,
    }


def _padded(value, width, fill, left):
    missing = width - value.shape[1]
    return nn.functional.pad(value, (missing, 0) if left else (0, missing), value=fill)
