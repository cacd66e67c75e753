"""What one cycle is to do: a bin, a number of rollouts and a weight for every prompt of the batch."""

from dataclasses import dataclass

import numpy as np

from gdro import checks


@dataclass(frozen=True, eq=False)
class Plan:
    """A batch's plan; its arrays (P,) are in the order of the prompt ids given, and cannot be written to.

    ``cycle`` number of the cycle; ``prompt_ids`` rows of the data set; ``bins`` in [-1, B), -1 excluded;
    ``rollouts`` > 0 of each prompt; ``weights`` > 0 on its advantages.
    """

    cycle: int
    prompt_ids: np.ndarray
    bins: np.ndarray
    rollouts: np.ndarray
    weights: np.ndarray

    def __post_init__(self):
        for name in ("prompt_ids", "bins", "rollouts", "weights"):
            array = getattr(self, name)
            if array.flags.writeable:
                array = array.copy()
                array.flags.writeable = False
                object.__setattr__(self, name, array)

    def __eq__(self, other):
        if not isinstance(other, Plan):
            return NotImplemented
        return self.cycle == other.cycle and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("prompt_ids", "bins", "rollouts", "weights")
        )

    __hash__ = None  # type: ignore[assignment]  # Python's own way of saying that a plan has no hash

    def to_dict(self) -> dict:
        """Arrays and a plain number, for a checkpoint."""
        return {
            "cycle": self.cycle,
            "prompt_ids": self.prompt_ids.copy(),
            "bins": self.bins.copy(),
            "rollouts": self.rollouts.copy(),
            "weights": self.weights.copy(),
        }

    @classmethod
    def from_dict(cls, state: dict) -> "Plan":
        """The plan that `to_dict` wrote; ``ValueError`` where a key is missing or the lengths differ."""
        missing = [key for key in ("cycle", "prompt_ids", "bins", "rollouts", "weights") if key not in state]
        if missing:
            raise ValueError(f"this is not a saved plan: it lacks {', '.join(missing)}")
        prompt_ids = checks.integer_array("prompt_ids", state["prompt_ids"], low=0)
        size = prompt_ids.size
        return cls(
            cycle=int(state["cycle"]),
            prompt_ids=prompt_ids,
            bins=checks.integer_array("bins", state["bins"], low=-1, size=size),
            rollouts=checks.integer_array("rollouts", state["rollouts"], low=1, size=size),
            weights=checks.finite_array("weights", state["weights"], size=size),
        )
