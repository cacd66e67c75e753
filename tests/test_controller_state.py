"""The controller's promises over time: pure plans, exact resuming, and refusals that change nothing."""

import math

import numpy as np
import pytest
from controllers import NAN, assert_same_state, controller, rows_of, run

from gdro.controller import Controller
from gdro.difficulty import OnlineDifficultyClassifier
from gdro.plan import Plan
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO


@pytest.mark.parametrize("rollout", ["gdro", "sqrt", None])
def test_planning_is_repeatable_and_the_plan_observed_is_the_one_that_counts(rollout):
    one, other = controller(rollout=rollout, seed=7), controller(rollout=rollout, seed=7)
    run(one, 4), run(other, 4)
    plan = one.plan([1, 5, 9, 5])
    assert plan == one.plan([1, 5, 9, 5])
    one.plan([0, 2, 4, 6])  # another look, not observed
    only = other.plan([1, 5, 9, 5])
    assert plan == only
    index = rows_of(plan)
    for each, of in ((one, plan), (other, only)):
        each.observe(of, index, (index % 2).astype(float))
    assert_same_state(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("rollout", ["gdro", "sqrt", None])
@pytest.mark.parametrize("cut", [0, 3])
def test_resuming_between_plan_and_observe_equals_never_having_stopped(rollout, cut):
    whole = controller(rollout=rollout, seed=3)
    plans = run(whole, 8)
    first = controller(rollout=rollout, seed=3)
    run(first, cut)
    rng = np.random.default_rng([0, cut])
    plan = first.plan(rng.integers(0, 12, size=6))
    saved = first.state_dict(), plan.to_dict()
    second = controller(rollout=rollout, seed=3)
    second.load_state_dict(saved[0])
    restored = Plan.from_dict(saved[1])
    assert restored == plan == plans[cut]
    index = rows_of(restored)
    rewards = (rng.random(index.size) > restored.prompt_ids[index] / 12).astype(float)
    second.observe(restored, index, rewards, losses=rng.normal(size=index.size))
    assert plans[cut + 1 :] == run(second, 7 - cut, start=cut + 1)
    assert_same_state(whole.state_dict(), second.state_dict())
    assert whole.metrics() == second.metrics()


def test_the_state_is_arrays_and_plain_values():
    one = controller()
    run(one, 2)
    for key, value in one.state_dict().items():
        assert isinstance(value, (np.ndarray, int, float, str)), key


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: controller(seed=1), "seed: saved 0, here 1"),
        (lambda: controller(signal="spread"), "signal: saved 'error', here 'spread'"),
        (lambda: controller(prompt=False), "prompt: saved 'PromptGDRO', here None"),
        (lambda: controller(rollout="sqrt"), "rollout: saved 'RolloutGDRO', here 'SquareRootLaw'"),
        (lambda: controller(prompts=13), "another data set: saved num_prompts 12, here 13"),
        (lambda: controller(data_fingerprint="b"), "saved data_fingerprint '', here 'b'"),
        (lambda: controller(bins=[0] * 12), "labels: saved None"),
    ],
)
def test_a_foreign_state_is_refused_and_changes_nothing(other, message):
    one, second = controller(), other()
    run(one, 3)
    before = second.state_dict()
    with pytest.raises(ValueError, match=message):
        second.load_state_dict(one.state_dict())
    assert_same_state(before, second.state_dict())


def test_a_state_damaged_in_one_part_leaves_all_parts_alone():
    one, second = controller(), controller()
    run(one, 3)
    run(second, 1, seed=9)
    before = second.state_dict()
    damaged = one.state_dict()
    damaged["classifier/successes"] = damaged["classifier/successes"] + 1
    with pytest.raises(ValueError, match="damaged"):
        second.load_state_dict(damaged)
    assert_same_state(before, second.state_dict())
    with pytest.raises(ValueError, match="schema 99"):
        second.load_state_dict({**one.state_dict(), "schema": 99})
    with pytest.raises(ValueError, match="lacks weights"):
        Plan.from_dict({key: 0 for key in ("cycle", "prompt_ids", "bins", "rollouts")})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"prompt_index": [0, 0, 0, 0, 0, 1]},
            ValueError,
            r"entry 0 of the plan \(prompt 2\) has 5 rows, above",
        ),
        ({"prompt_index": [0, 0, 0, 1, 1, 2]}, ValueError, r"prompt_index\[5\] is 2, above the limit 1"),
        ({"rewards": [0, 1, 0, 1, 0, math.inf]}, ValueError, r"rewards\[5\] is inf"),
        ({"prompt_index": [], "rewards": [], "losses": []}, ValueError, "there are no rows; .* NaN where"),
        ({"rewards": [0, 1]}, ValueError, r"rewards must have shape \(6,\)"),
        ({"losses": [0, 0, NAN, 0, 0, 0]}, ValueError, r"losses\[2\] is nan"),
        ({"losses": None}, ValueError, 'signal "surrogate" needs the losses'),
        ({"correct": [0, 1, 0, 1, 0, 1]}, TypeError, "correct must be booleans"),
    ],
)
def test_bad_outcomes_are_refused_and_change_nothing(change, error, message):
    one = controller(rollout=None, signal="surrogate")
    plan = one.plan([2, 7])
    before = one.state_dict()
    rows = {"prompt_index": [0, 0, 0, 1, 1, 1], "rewards": [0, 1, 0, 1, 0, 1], "losses": [0.5] * 6}
    with pytest.raises(error, match=message):
        one.observe(plan, **{**rows, **change})
    assert_same_state(before, one.state_dict())
    one.observe(plan, **rows)
    with pytest.raises(ValueError, match="the plan is of cycle 0, the controller is at cycle 1"):
        one.observe(plan, **rows)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([0, 12], ValueError, r"prompt_ids\[1\] is 12, above the limit 11; ids are rows of the data set"),
        ([-1], ValueError, r"prompt_ids\[0\] is -1, below the limit 0"),
        ([], ValueError, "at least one prompt"),
        ([0.5], TypeError, "prompt_ids must be integers"),
    ],
)
def test_bad_ids_are_refused(ids, error, message):
    with pytest.raises(error, match=message):
        controller().plan(ids)


def test_a_plan_of_another_controller_is_refused():
    one, other = controller(seed=1), controller(seed=1)
    run(other, 6)
    plan = other.plan(np.arange(12))
    forged = Plan(0, plan.prompt_ids, np.full(12, 2), np.where(np.arange(12) % 2, 6, 2), plan.weights)
    before = one.state_dict()
    with pytest.raises(ValueError, match="was not made by this controller in its present state"):
        one.observe(forged, [0], [1.0])
    assert one.cycle == before["cycle"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda c: Controller(c, PromptGDRO(5), mean_budget=4), "prompt 5, classifier 4"),
        (lambda c: Controller(c, PromptGDRO(4), RolloutGDRO(5)), "rollout 5"),
        (lambda c: Controller(c), "pass mean_budget"),
        (lambda c: Controller(c, mean_budget=0), "mean_budget must be at least 1, got 0"),
        (lambda c: Controller(c, rollout=RolloutGDRO(4), mean_budget=5), "mean_budget is 5, .* 4; give one"),
        (
            lambda c: Controller(c, mean_budget=4, signal="loss"),
            "known ones are 'error', 'spread', 'surrogate'",
        ),
        (
            lambda c: Controller(c, PromptGDRO(2), mean_budget=4, bins=[0] * 11 + [2]),
            "label 2, above the limit 1",
        ),
        (lambda c: Controller(c, mean_budget=4, bins=[0, 1]), r"bins must have shape \(12,\)"),
        (lambda c: Controller(c, mean_budget=4, seed=-1), "seed must be at least 0"),
    ],
)
def test_parts_that_disagree_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(OnlineDifficultyClassifier(12, edges=4))


def test_an_adversary_in_the_place_of_the_other_is_refused():
    classifier = OnlineDifficultyClassifier(12, edges=4)
    with pytest.raises(TypeError, match="prompt must be a PromptGDRO or None, got RolloutGDRO"):
        Controller(classifier, prompt=RolloutGDRO(4), rollout=PromptGDRO(4))
    with pytest.raises(TypeError, match=r"rollout must be a RolloutGDRO or .* None, got PromptGDRO"):
        Controller(classifier, rollout=PromptGDRO(4))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": "{"}, "not JSON .*damaged"),
        ({"settings": "[]"}, r"are \[\], not named"),
        ({"prompt/settings": "{"}, "state of PromptGDRO are not JSON"),
        ({"cycle": -1}, "cycle is -1"),
        ({"cycle": "x"}, "'cycle' of shape"),
        ({"schema": "x"}, "schema 'x', this version reads 1"),
        ({"classifier/prior_a": float("nan")}, "prior's shapes nan, 1.0"),
        ({"classifier/calls": -2}, "calls are -2"),
    ],
)
def test_damage_is_named_and_changes_nothing(change, words):
    one = controller()
    run(one, 2)
    before = one.state_dict()
    with pytest.raises(ValueError, match=words):
        one.load_state_dict({**before, **change})
    assert_same_state(one.state_dict(), before)


@pytest.mark.parametrize("key", ["schema", "settings", "num_prompts", "data_fingerprint", "cycle"])
def test_a_state_that_is_not_whole_says_what_it_needs(key):
    state = controller().state_dict()
    del state[key]
    with pytest.raises(ValueError, match="needs cycle, data_fingerprint, num_prompts, schema, settings"):
        controller().load_state_dict(state)
    with pytest.raises(ValueError, match="has NoneType; load what state_dict returned"):
        controller().load_state_dict(None)
