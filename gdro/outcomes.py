"""From rows to prompts: checks a cycle's rewards and losses and sums them up for each entry of the plan."""

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from gdro import checks
from gdro.statistics import mean_by

# the loss of a prompt by its pass rate p; "surrogate" is the mean of its rows' own losses instead
OF_PASS_RATE = MappingProxyType({"error": lambda p: 1 - p, "spread": lambda p: np.sqrt(p * (1 - p))})
SIGNALS = (*OF_PASS_RATE, "surrogate")


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of a plan, arrays (P,): NaN where an entry has too few scored rollouts for a number.

    ``scored`` rollouts with a reward; ``correct`` of them; ``pass_rate`` = correct / scored; ``reward`` mean;
    ``reward_variance`` unbiased, of two scored rollouts or more; ``signal`` the prompt's loss; ``flat``
    whether all its scored rewards are equal (its advantages are 0).
    """

    scored: np.ndarray
    correct: np.ndarray
    pass_rate: np.ndarray
    reward: np.ndarray
    reward_variance: np.ndarray
    signal: np.ndarray
    flat: np.ndarray

    @classmethod
    def from_rows(cls, plan, prompt_index, rewards, losses, correct, signal, success_threshold):
        """Check the rows (R,) that came of ``plan`` and sum them up; see `Controller.observe`."""
        size = plan.prompt_ids.size
        index = checks.integer_array(
            "prompt_index", prompt_index, low=0, high=size - 1, remedy="it counts the plan's entries"
        )
        if index.size == 0:
            raise ValueError(
                "there are no rows; observe a plan with the rows that were generated, rewards NaN where "
                "nothing was scored, or plan again without observing"
            )
        rows = _checked_rows(index, plan)
        rewards = checks.float_array("rewards", rewards, size=index.size)
        if np.isinf(rewards).any():
            at = int(np.argmax(np.isinf(rewards)))
            raise ValueError(
                f"rewards[{at}] is {rewards[at]}; give a finite reward, or NaN where there is none"
            )
        if correct is None:
            correct = rewards > success_threshold
        correct = _booleans("correct", correct, index.size)
        if losses is not None:
            losses = checks.float_array("losses", losses, size=index.size)
            bad = ~np.isfinite(losses) & ~np.isnan(rewards)
            if bad.any():
                at = int(np.argmax(bad))
                raise ValueError(
                    f"losses[{at}] is {losses[at]}, not finite; look for NaN in the policy's outputs"
                )
        elif signal == "surrogate":
            raise ValueError('signal "surrogate" needs the losses of the rows, got None; pass losses=')
        scored = ~np.isnan(rewards)
        if not scored.all():
            index, rewards, correct = index[scored], rewards[scored], correct[scored]
            losses = None if losses is None else losses[scored]
            rows = np.bincount(index, minlength=size)
        return cls._summed(rows, index, rewards, correct, losses, signal)

    @classmethod
    def _summed(cls, scored, index, rewards, correct, losses, signal):
        """``scored`` (P,) rows of each entry, all of them with a reward; see `from_rows`."""
        size = scored.size
        right = np.bincount(index.compress(correct), minlength=size)
        several = np.where(scored > 1, scored, np.nan)
        p = right / np.where(scored > 0, scored, np.nan)
        reward = mean_by(index, rewards, size)
        with np.errstate(over="ignore"):
            squares = (rewards - reward[index]) ** 2
            variance = np.bincount(index, squares, minlength=size) / (several - 1)
        loss = mean_by(index, losses, size) if signal == "surrogate" else OF_PASS_RATE[signal](p)
        first = np.zeros(size)
        first[index] = rewards
        differing = np.bincount(index.compress(rewards != first[index]), minlength=size)
        return cls(scored, right, p, reward, variance, loss, differing == 0)


def _checked_rows(index, plan):
    """(P,) rows of each entry of the plan, refused above the planned rollouts."""
    rows = np.bincount(index, minlength=plan.rollouts.size)
    if (rows > plan.rollouts).any():
        at = int(np.argmax(rows > plan.rollouts))
        raise ValueError(
            f"entry {at} of the plan (prompt {plan.prompt_ids[at]}) has {rows[at]} rows, above its "
            f"{plan.rollouts[at]} planned rollouts; check prompt_index"
        )
    return rows


def _booleans(name, values, size):
    array = np.asarray(values)
    if array.dtype.kind != "b" or array.shape != (size,):
        raise TypeError(
            f"{name} must be booleans (shape ({size},)), got {array.dtype}, shape {array.shape}; "
            "compare with a threshold, or turn 0 and 1 into booleans with .astype(bool)"
        )
    return array
