"""Rollout-GDRO: saved states, and what is refused with nothing changed."""

import numpy as np
import pytest
from rollout_steps import assert_same_state, cycle, rng

from gdro import Exp3P, RolloutGDRO
from gdro.allocation import sample_assignment
from gdro.sqrt_law import SquareRootLaw


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"selection": "sample", "importance_weighted": True},
        {"utility": "variance", "arm_ema_rate": None},
        {"budget": "dual", "mean_budget": 4.5},
    ],
)
def test_state_round_trip_gives_the_same_plans(more):
    bins = rng(1).integers(-1, 4, size=24)

    def run(adversary, steps):
        result = []
        for step in steps:
            losses = rng(step).random(24)
            result.append(cycle(adversary, bins, losses, step, variances=losses / 4).tolist())
        return result

    whole, cut = RolloutGDRO(4, **more), RolloutGDRO(4, **more)
    expected = run(whole, range(8))
    assert run(cut, range(4)) == expected[:4]
    resumed = RolloutGDRO(4, **more)
    state = cut.state_dict()
    resumed.load_state_dict(state)
    state["scores"][:] = 7  # neither side keeps the other's arrays
    assert run(resumed, range(4, 8)) == expected[4:]
    assert_same_state(resumed.state_dict(), whole.state_dict())


def test_states_of_other_settings_are_refused_whole():
    trained = RolloutGDRO(3)
    cycle(trained, [0, 1], [0.1, 0.9])
    other = RolloutGDRO(3, step_size=0.5, utility="adversarial")
    cycle(other, [0, 1], [0.3, 0.4])
    before = other.state_dict()
    with pytest.raises(
        ValueError, match=r"step_size: saved 0\.65, here 0\.5; utility: saved 'loss', here 'adv"
    ):
        other.load_state_dict(trained.state_dict())
    with pytest.raises(ValueError, match=r"released: saved False, here True"):
        RolloutGDRO.released(3).load_state_dict(trained.state_dict())
    for name, value in (
        ("scores", np.full((3, 11), np.nan)),
        ("scores", np.zeros((2, 11))),
        ("variances", np.full(3, np.inf)),
        ("variance_counts", np.zeros(3)),
        ("price", np.nan),
    ):
        with pytest.raises(ValueError, match=name.split("_")[0]):
            other.load_state_dict({**before, name: value})
    with pytest.raises(ValueError, match="lacks 'price'"):
        other.load_state_dict({name: value for name, value in before.items() if name != "price"})
    assert_same_state(other.state_dict(), before)


def test_readers_change_nothing():
    adversary = RolloutGDRO(2, (2, 3), 2)
    cycle(adversary, [0, 1], [0.1, 0.9])
    before = adversary.state_dict()
    adversary.scores[:] = 5
    adversary.arm_probabilities[:] = 5
    adversary.state_dict()["scores"][:] = 5
    assert (adversary.num_bins, adversary.arms, adversary.mean_budget) == (2, (2, 3), 2)
    assert_same_state(adversary.state_dict(), before)
    assert isinstance(RolloutGDRO(2, mean_budget=4.0).mean_budget, int)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"num_bins": 0}, ValueError, "num_bins must be at least 1, got 0"),
        ({"arms": (1, 2)}, ValueError, "below the limit 2"),
        ({"arms": (2, 4)}, ValueError, r"consecutive rising integers.*\[2, 4\]"),
        ({"arms": ()}, ValueError, "at least one"),
        ({"mean_budget": 1.5}, ValueError, r"mean_budget 1\.5 is outside the arms 2\.\.12"),
        ({"mean_budget": 13}, ValueError, r"mean_budget 13 is outside the arms 2\.\.12"),
        ({"mean_budget": float("nan")}, ValueError, "mean_budget must be finite"),
        ({"step_size": -1}, ValueError, "step_size must be at least 0"),
        ({"exploration": 1.5}, ValueError, r"exploration must be at most 1, got 1\.5"),
        ({"arm_ema_rate": 0}, ValueError, "arm_ema_rate must be above 0"),
        ({"price_step_size": -0.1}, ValueError, "price_step_size must be at least 0"),
        ({"budget": "soft"}, ValueError, "unknown budget 'soft'.*'exact', 'dual'"),
        ({"selection": "best"}, ValueError, "unknown selection 'best'.*'map', 'sample'"),
        ({"utility": "gain"}, ValueError, "unknown utility 'gain'.*'loss', 'adversarial', 'variance'"),
        ({"importance_weighted": True}, ValueError, "needs selection='sample', got 'map'"),
        (
            {"importance_weighted": True, "selection": "sample", "utility": "variance"},
            ValueError,
            "does not go with utility='variance'",
        ),
        (
            {"importance_weighted": True, "selection": "sample", "mean_budget": 4.5},
            ValueError,
            r"needs a whole mean_budget, got 4\.5",
        ),
        ({"loss_bounds": (1, 0)}, ValueError, r"low < high, got \(1, 0\)"),
        ({"loss_bounds": None}, ValueError, r"loss_bounds must be \(low, high\), got None"),
        ({"loss_bounds": (0, 1, 2)}, ValueError, r"loss_bounds must be \(low, high\), got \(0, 1, 2\)"),
        ({"step_size": "0.5"}, TypeError, "step_size must be a number, got '0.5'"),
    ],
)
def test_settings_out_of_range_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        RolloutGDRO(**{"num_bins": 3, **arguments})


def test_bad_batches_are_named():
    with pytest.raises(ValueError, match=r"3 prompts times mean_budget 2\.5 is 7\.5, not a whole number"):
        RolloutGDRO(2, mean_budget=2.5).plan([0, 0, 1], rng())
    with pytest.raises(ValueError, match=r"bins\[1\] is 2, above the limit 1"):
        RolloutGDRO(2).plan([0, 2], rng())
    with pytest.raises(ValueError, match=r"bins\[0\] is -2, below the limit -1"):
        RolloutGDRO(2).plan([-2, 0], rng())


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: RolloutGDRO(2).plan([0, 1], seed),
        lambda seed: RolloutGDRO.released(2).plan([0, 1], seed),
        lambda seed: RolloutGDRO(2, budget="dual").plan([0, 1], seed),
        lambda seed: SquareRootLaw(2, (2, 3, 4), 3).plan([0, 1], seed),
        lambda seed: sample_assignment([1, 1], np.zeros((2, 2)), [2, 3], 5, seed),
        lambda seed: Exp3P(2, 100).draw(seed),
    ],
)
def test_a_seed_where_a_generator_is_wanted_is_named(draw):
    with pytest.raises(TypeError, match=r"rng must be a numpy Generator, got 0; make one with numpy"):
        draw(0)


@pytest.mark.parametrize(
    ("bins", "losses", "words"),
    [
        ([0, 1], [0.5, np.nan], r"losses\[1\] is nan"),
        ([0, 1], [np.inf, 0.5], r"losses\[0\] is inf"),
        ([0, 1], [0.5], r"losses must have shape \(2,\)"),
        ([1, 1], [0.5, 0.5], r"bins\[0\] is 1, planned was 0"),
        ([0], [0.5], r"bins must have shape \(2,\)"),
        ([0, 1], [0.5, 1.5], r"a loss is 1\.5, outside loss_bounds \(0\.0, 1\.0\)"),
    ],
)
def test_bad_observations_change_nothing(bins, losses, words):
    adversary = RolloutGDRO(2, selection="sample", importance_weighted=True)
    adversary.plan([0, 1], rng())
    before = adversary.state_dict()
    with pytest.raises(ValueError, match=words):
        adversary.observe(bins, losses)
    assert_same_state(adversary.state_dict(), before)
    adversary.observe([0, 1], [0.5, 0.5])  # the plan still stands


@pytest.mark.parametrize("variances", [None, [0.1, -0.1], [np.inf, 0.1], [0.1]])
def test_bad_variances_change_nothing(variances):
    adversary = RolloutGDRO(2, utility="variance")
    adversary.plan([0, 1], rng())
    before = adversary.state_dict()
    with pytest.raises(ValueError, match="variances"):
        adversary.observe([0, 1], [0.5, 0.5], variances=variances)
    assert_same_state(adversary.state_dict(), before)
