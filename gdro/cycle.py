"""One cycle of a trainer: the plan, the rewards it brought, and the losses of its rows as the passes go by
(torch)."""

from dataclasses import dataclass

import numpy as np
import torch

from gdro.controller import Plan

SLOT = "gdro_slot"  # row tensor: which row of the plan, counted over all processes
RAW = "gdro_raw_advantage"  # row tensor: the advantage before n_bar / n_i and the weight


@dataclass
class Cycle:
    """Rows of one generation, R over all processes, L on this one.

    ``plan`` what was asked for; ``rewards`` (R,) NaN where not a rollout; ``correct`` (R,) bool; ``tokens``
    generated; ``first`` the slot of this process's first row; ``loss_sum`` and ``passes`` (L,) of the
    surrogate signal.
    """

    plan: Plan
    rewards: np.ndarray
    correct: np.ndarray
    tokens: int
    first: int
    loss_sum: torch.Tensor
    passes: torch.Tensor

    @property
    def prompt_index(self):
        """(R,) which prompt of the plan each row belongs to."""
        return np.repeat(np.arange(len(self.plan.rollouts)), self.plan.rollouts)

    def add_losses(self, slots, losses):
        """Count one pass of the rows ``slots`` with their losses (6)."""
        local = slots - self.first
        self.loss_sum.index_add_(0, local, losses.to(self.loss_sum.dtype))
        self.passes.index_add_(0, local, torch.ones_like(local))

    def mean_losses(self):
        """(L,) loss of each row, averaged over its passes."""
        return self.loss_sum / self.passes.clamp(min=1)

    def state(self):
        """Arrays and plain values that `from_state` takes back."""
        return {
            "plan": self.plan.to_dict(),
            "rewards": self.rewards,
            "correct": self.correct,
            "tokens": self.tokens,
            "first": self.first,
            "loss_sum": self.loss_sum.cpu().numpy(),
            "passes": self.passes.cpu().numpy(),
        }

    @classmethod
    def from_state(cls, state, device):
        """The cycle that `state` was called on, its tensors on ``device``."""
        return cls(
            plan=Plan.from_dict(state["plan"]),
            rewards=state["rewards"],
            correct=state["correct"],
            tokens=state["tokens"],
            first=state["first"],
            loss_sum=torch.from_numpy(state["loss_sum"]).to(device),
            passes=torch.from_numpy(state["passes"]).to(device),
        )
