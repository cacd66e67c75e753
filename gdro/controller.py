"""One object that a training loop talks to: plan before generation, observe after the update.

NumPy and SciPy only, so that any trainer can call it. A cycle is one round of plan, generate, observe.
"""

import json
import time
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from gdro import checks
from gdro.outcomes import SIGNALS, Outcomes
from gdro.plan import Plan
from gdro.report import Adversaries, bin_rows, flat_metrics, prompt_lists

_SCHEMA = 1
_PARTS = ("classifier", "prompt", "rollout")
_OWN_KEYS = {"schema", "settings", "num_prompts", "data_fingerprint", "cycle"}


class Controller:
    """Sorts prompts into bins, asks the adversaries for rollouts and weights, and shows them what came of it.

    The bins, rollouts and weights of a cycle come from the history up to the cycle before; its outcomes are
    folded in by ``observe``. Section 3, Panaganti et al. 2026. The paper runs one adversary at a time; here
    none, either or both.

    The loss of a prompt with success rate p over its scored rollouts, shown to both adversaries (``signal``):
      "error"      1 - p (the appendix's footnote, L_b = -J_b);
      "spread"     sqrt(p (1 - p)), the square root of the variance proxy (28);
      "surrogate"  mean of the rows' losses (6), eq. (7), which ``observe`` then needs.

    Args: ``classifier`` an `OnlineDifficultyClassifier`; ``prompt`` a `PromptGDRO`, or None (weights 1);
    ``rollout`` a `RolloutGDRO` or a rule of its kind, or None: every prompt has ``mean_budget`` rollouts,
    which nothing else says, so that ``Controller(classifier)`` alone is refused; ``seed`` >= 0; ``bins`` (N,)
    fixed bin of every prompt in [0, B), for groups given by a column: the classifier still observes, but does
    not decide; ``data_fingerprint`` any string that tells data sets apart; ``success_threshold``: a rollout
    is correct where its reward exceeds it, unless ``observe`` is told.
    Raises ``ValueError`` where the parts disagree about the number of bins or the mean budget, naming both;
    ``TypeError`` for an adversary in the other's place.

    Randomness is counter based: the stream of a cycle is made from (seed, purpose, cycle), so a resumed
    controller needs no generator state, and planning twice gives the same plan.

    ``seconds`` says how long the plan of the current cycle took, and once it is observed, plan and
    observation together; it is no part of the state.

    >>> from gdro import OnlineDifficultyClassifier, PromptGDRO
    >>> controller = Controller(OnlineDifficultyClassifier(3, edges=2), PromptGDRO(2), mean_budget=2)
    >>> plan = controller.plan([0, 2])
    >>> controller.observe(plan, [0, 0, 1, 1], [0.0, 0.0, 1.0, 0.0])
    >>> controller.plan([0, 2]).weights.round(3), [row["prompts"] for row in controller.log_rows()]
    (array([1.628, 1.   ]), [2, 0])
    """

    def __init__(
        self,
        classifier,
        prompt=None,
        rollout=None,
        seed: int = 0,
        *,
        mean_budget: float | None = None,
        signal: str = "error",
        bins: ArrayLike | None = None,
        data_fingerprint: str = "",
        success_threshold: float = 0.5,
    ):
        _check_part("prompt", prompt, "weights_for", "a PromptGDRO")
        _check_part("rollout", rollout, "plan", "a RolloutGDRO or a rule of its kind")
        self.classifier, self.prompt, self.rollout = classifier, prompt, rollout
        self.seed = checks.whole_number("seed", seed, low=0)
        self.signal = checks.one_of("signal", signal, SIGNALS)
        self.success_threshold = checks.real_number("success_threshold", success_threshold)
        self.data_fingerprint = str(data_fingerprint)
        self.mean_budget = _agreed_budget(mean_budget, rollout)
        self._labels = None
        if bins is not None:
            self._labels = checks.integer_array("bins", bins, low=0, size=classifier.num_prompts)
        self.num_bins = _agreed_bins(classifier, prompt, rollout, self._labels)
        self.cycle = 0
        self.seconds = 0.0
        self._planned: Plan | None = None
        self._last: tuple[Plan, Outcomes, Adversaries] | None = None

    def plan(self, prompt_ids: ArrayLike) -> Plan:
        """Bins, rollouts and weights for a batch, from the history so far. Does not advance the cycle.

        Args: ``prompt_ids`` (P,) integers in [0, N), rows of the data set; a prompt twice is two entries.
        Raises ``ValueError`` naming an id outside the data set; and what the rollout adversary refuses.
        """
        start = time.perf_counter()
        prompt_ids = checks.integer_array(
            "prompt_ids",
            prompt_ids,
            low=0,
            high=self.classifier.num_prompts - 1,
            remedy="ids are rows of the data set",
        )
        if prompt_ids.size == 0:
            raise ValueError("prompt_ids is empty; a plan needs at least one prompt")
        bins = self.classifier.bins(prompt_ids) if self._labels is None else self._labels[prompt_ids]
        rollouts = self._rollouts(bins)
        weights = np.ones(bins.size) if self.prompt is None else self.prompt.weights_for(bins)
        self._planned = Plan(self.cycle, prompt_ids, bins, rollouts, weights)
        self.seconds = time.perf_counter() - start
        return self._planned

    def _rollouts(self, bins):
        if self.rollout is None:
            return np.full(bins.size, self.mean_budget, dtype=np.int64)
        return self.rollout.plan(bins, self._generator("rollouts"))

    def _generator(self, purpose):
        return np.random.default_rng(
            np.random.SeedSequence([self.seed, zlib.crc32(purpose.encode()), self.cycle])
        )

    def observe(
        self,
        plan: Plan,
        prompt_index: ArrayLike,
        rewards: ArrayLike,
        losses: ArrayLike | None = None,
        correct: ArrayLike | None = None,
    ) -> None:
        """Fold the outcomes of ``plan`` into classifier and adversaries, and go on to the next cycle.

        Args: ``plan`` of this cycle; per row (R,): ``prompt_index`` in [0, P), the row's entry of the plan,
        rows in any order; ``rewards`` real, NaN where the row is no rollout (no reward function answered);
        ``losses`` finite on scored rows, needed by signal "surrogate"; ``correct`` booleans, by default
        rewards > success_threshold. A prompt without a scored row is no visit and takes no part in any
        update; a cycle with rows of which none was scored counts as one, and changes the price at most.
        Raises ``ValueError`` or ``TypeError``, nothing changed, for a plan of another cycle, no rows at all,
        more rows for a prompt than planned, an infinite reward, rewards whose variance overflows where a
        rule takes it, or a loss that is not finite.
        """
        start = time.perf_counter()
        self._check_plan(plan)
        outcomes = Outcomes.from_rows(
            plan, prompt_index, rewards, losses, correct, self.signal, self.success_threshold
        )
        self._restore_rollout_plan(plan)
        adversaries = self._adversaries(plan)
        visited = outcomes.scored > 0
        bins = np.where(visited, plan.bins, -1)
        signal = np.where(visited, outcomes.signal, 0.0)
        if self.rollout is not None:
            self.rollout.observe(bins, signal, variances=outcomes.reward_variance)
        if self.prompt is not None:
            self.prompt.observe(bins, signal)
        self.classifier.observe(plan.prompt_ids, outcomes.correct, outcomes.scored)
        self._last = (plan, outcomes, adversaries)
        self._planned = None
        self.cycle += 1
        self.seconds += time.perf_counter() - start

    def _check_plan(self, plan):
        if plan.cycle != self.cycle:
            raise ValueError(
                f"the plan is of cycle {plan.cycle}, the controller is at cycle {self.cycle}; "
                "observe each plan once, before the next is made"
            )
        if plan is self._planned:
            return
        checks.integer_array("prompt_ids", plan.prompt_ids, low=0, high=self.classifier.num_prompts - 1)
        checks.integer_array("plan.bins", plan.bins, low=-1, high=self.num_bins - 1)

    def _restore_rollout_plan(self, plan):
        """Make ``plan`` the rollout adversary's last plan, where resuming or a later plan() left another."""
        if self.rollout is None or plan is self._planned:
            return
        again = self.rollout.plan(plan.bins, self._generator("rollouts"))
        if not np.array_equal(again, plan.rollouts):
            raise ValueError(
                f"the plan of cycle {plan.cycle} was not made by this controller in its present state; "
                "observe the plan that plan() returned, with the state it was made in"
            )

    def _adversaries(self, plan) -> Adversaries:
        """What the adversaries thought when they made ``plan``, for the log."""
        prompt, rollout = self.prompt, self.rollout
        unknown = np.full(self.num_bins, np.nan)
        return Adversaries(
            score=unknown if prompt is None else prompt.scores,
            q=unknown if prompt is None else prompt.distribution,
            weight=np.ones(self.num_bins) if prompt is None else prompt.bin_weights(plan.bins),
            arm_probabilities=getattr(rollout, "arm_probabilities", None),
            shadow_price=float(getattr(rollout, "shadow_price", np.nan)),
            asked_mean=float(getattr(rollout, "asked_mean", np.nan)),
        )

    def log_rows(self) -> list[dict]:
        """One dictionary a bin for the last observed cycle, none before it. Keys: `gdro.report.bin_rows`."""
        return [] if self._last is None else bin_rows(*self._last)

    def metrics(self) -> dict[str, float]:
        """Flat {name: float} of the last observed cycle for a logger; what is undefined is left out."""
        return {} if self._last is None else flat_metrics(*self._last)

    def prompt_lists(self) -> dict[str, list]:
        """The last observed cycle prompt by prompt, none before it. Keys: `gdro.report.prompt_lists`."""
        return {} if self._last is None else prompt_lists(*self._last[:2])

    def state_dict(self) -> dict:
        """Flat dictionary of arrays and plain values: everything but what `log_rows` shows.

        Keys "schema", "settings" (JSON: this object's, and which parts there are), "data_fingerprint",
        "num_prompts", "cycle", and each part's own under "classifier/", "prompt/" and "rollout/".
        """
        state = {
            "schema": _SCHEMA,
            "settings": json.dumps(self._settings(), sort_keys=True),
            "num_prompts": self.classifier.num_prompts,
            "data_fingerprint": self.data_fingerprint,
            "cycle": self.cycle,
        }
        for name in self._parts():
            part = getattr(self, name).state_dict()
            state.update({f"{name}/{key}": value for key, value in part.items()})
        return state

    def load_state_dict(self, state: dict) -> None:
        """Continue from ``state``. A plan saved beside it can be observed next.

        Raises ``ValueError``, nothing changed, for another schema, data set or settings, naming both sides.
        """
        self._check_state(state)
        # the classifier, large, comes last: what comes before it is small enough to be put back
        loaded = []
        try:
            for name in reversed(self._parts()):
                part = getattr(self, name)
                before = None if name == "classifier" else part.state_dict()
                prefix = f"{name}/"
                part.load_state_dict(
                    {
                        key.removeprefix(prefix): value
                        for key, value in state.items()
                        if key.startswith(prefix)
                    }
                )
                loaded.append((part, before))
        except (ValueError, TypeError, KeyError):
            for part, before in loaded:
                part.load_state_dict(before)
            raise
        self.cycle = int(state["cycle"])
        self.seconds, self._planned, self._last = 0.0, None, None

    def _check_state(self, state):
        if not (isinstance(state, Mapping) and state.keys() >= _OWN_KEYS):
            found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"this is not a whole state of Controller: it needs {', '.join(sorted(_OWN_KEYS))}, "
                f"and has {found}; load what state_dict returned"
            )
        if str(state["schema"]) != str(_SCHEMA):
            raise ValueError(
                f"the state has schema {state['schema']!r}, this version reads {_SCHEMA}; "
                "use the version that wrote it"
            )
        for key, own in (
            ("num_prompts", self.classifier.num_prompts),
            ("data_fingerprint", self.data_fingerprint),
        ):
            saved = type(own)(state[key])
            if saved != own:
                raise ValueError(
                    f"the state belongs to another data set: saved {key} {saved!r}, here {own!r}; "
                    "load the data set it was saved with, or start without it"
                )
        checks.check_settings("Controller", self._settings(), state)
        cycle = checks.state_array("Controller", state, "cycle", shape=(), kind="iu")
        if cycle < 0:
            raise ValueError(f"the saved cycle is {cycle}; the state was damaged")

    def _parts(self):
        return [name for name in _PARTS if getattr(self, name) is not None]

    def _settings(self):
        return {
            "seed": self.seed,
            "signal": self.signal,
            "success_threshold": self.success_threshold,
            "mean_budget": self.mean_budget,
            "num_bins": self.num_bins,
            "labels": None if self._labels is None else zlib.crc32(self._labels.tobytes()),
            **{
                name: None if getattr(self, name) is None else type(getattr(self, name)).__name__
                for name in _PARTS
            },
        }


def _check_part(name, part, method, wanted):
    if part is not None and not hasattr(part, method):
        raise TypeError(f"{name} must be {wanted} or None, got {type(part).__name__}, which has no {method}")


def _agreed_budget(mean_budget, rollout):
    if rollout is None:
        if mean_budget is None:
            raise ValueError(
                "without a rollout adversary the rollouts for each prompt must be given: pass mean_budget"
            )
        return checks.whole_number("mean_budget", mean_budget, low=1)
    if mean_budget is not None and mean_budget != rollout.mean_budget:
        raise ValueError(
            f"mean_budget is {mean_budget}, the rollout adversary's {rollout.mean_budget}; give one of them"
        )
    return rollout.mean_budget


def _agreed_bins(classifier, prompt, rollout, labels):
    """Number of bins; the adversaries must have the classifier's, or with fixed labels enough for them."""
    counts = {
        name: part.num_bins for name, part in (("prompt", prompt), ("rollout", rollout)) if part is not None
    }
    if labels is None:
        counts["classifier"] = classifier.num_bins
    if len(set(counts.values())) > 1:
        both = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(f"the parts disagree about the number of bins ({both}); build them with the same")
    num_bins = next(iter(counts.values()), None)
    if num_bins is None:
        return int(labels.max()) + 1
    if labels is not None and labels.max() >= num_bins:
        raise ValueError(
            f"bins has the label {labels.max()}, above the limit {num_bins - 1}; raise the parts' num_bins"
        )
    return num_bins
