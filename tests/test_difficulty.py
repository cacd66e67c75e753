"""The classifier against a slow, obvious one in plain Python, and its rules one by one."""

import tracemalloc

import numpy as np
import pytest
from difficulty_oracle import ESTIMATORS, Oracle, scenarios
from hypothesis import given, settings
from hypothesis import strategies as st

from gdro.difficulty import OnlineDifficultyClassifier


def columns(call):
    return [np.array([row[i] for row in call], dtype=np.int64) for i in range(3)]


@settings(max_examples=250, deadline=None)
@given(scenarios())
def test_equals_the_oracle(scenario):
    inner, setting, calls = scenario
    fast, slow = OnlineDifficultyClassifier(edges=inner or 1, **setting), Oracle(inner=inner, **setting)
    everyone = np.arange(setting["num_prompts"])
    for call in calls:
        fast.observe(*columns(call))
        slow.observe(*zip(*call, strict=True)) if call else slow.observe([], [], [])
        assert fast.visits(everyone).tolist() == [len(h) for h in slow.history]
        np.testing.assert_allclose(
            fast.pass_rate(everyone), [slow.estimate(p) for p in everyone], atol=1e-11, rtol=1e-11
        )
        assert fast.bins(everyone).tolist() == [slow.reported_bin(p) for p in everyone]
        if setting["estimator"] == "posterior":
            np.testing.assert_allclose(fast.prior, slow.prior, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.integers(0, 19))
def test_a_restored_classifier_goes_on_alike_and_readers_change_nothing(scenario, cut):
    inner, setting, calls = scenario
    first = OnlineDifficultyClassifier(edges=inner or 1, **setting)
    for call in calls[:cut]:
        first.observe(*columns(call))
    second = OnlineDifficultyClassifier(edges=inner or 1, **setting)
    second.load_state_dict(first.state_dict())
    everyone = np.arange(setting["num_prompts"])
    for call in calls[cut:]:
        first.observe(*columns(call))
        first.pass_rate(everyone), first.bins(everyone), first.visits(everyone), first.state_dict()
        second.observe(*columns(call))
    assert_same_state(first, second)


def assert_same_state(first, second):
    left, right = first.state_dict(), second.state_dict()
    assert left.keys() == right.keys()
    for key, value in left.items():
        np.testing.assert_array_equal(value, right[key], err_msg=key)


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.randoms(use_true_random=False))
def test_the_order_of_different_prompts_does_not_matter(scenario, random):
    inner, setting, calls = scenario
    first, second = (OnlineDifficultyClassifier(edges=inner or 1, **setting) for _ in range(2))
    for call in calls:
        first.observe(*columns(call))
        keys = {p: random.random() for p, _, _ in call}
        second.observe(*columns(sorted(call, key=lambda row: keys[row[0]])))
    assert_same_state(first, second)


def visited(successes, visits, **kwargs):
    """A classifier whose prompt 0 was right in the last ``successes`` of ``visits`` visits, assigned at the
    last one."""
    classifier = OnlineDifficultyClassifier(1, **kwargs)
    outcomes = np.arange(visits) >= visits - successes
    classifier.observe(np.zeros(visits, dtype=int), outcomes.astype(int), np.ones(visits, dtype=int))
    return classifier


@pytest.mark.parametrize("bins", [3, 5, 7, 10, 20, 30])
def test_an_estimate_on_an_edge_belongs_to_the_upper_bin(bins):
    found = [visited(b, bins, edges=bins, hysteresis=0.0).bins([0])[0] for b in range(bins + 1)]
    assert found == [*range(bins), bins - 1]


def test_three_tenths_lies_in_bin_3():
    # 3 / 10 < 0.1 + 0.2 = 0.30000000000000004: both spellings are the same edge
    for edges in ([0.1, 0.2, 0.1 + 0.2, 0.4], [0.1, 0.2, 0.3, 0.4]):
        assert visited(3, 10, edges=edges, hysteresis=0.0).bins([0]) == [3]
    assert visited(299, 1000, window=1000).bins([0]) == [2]


def feed(classifier, outcomes):
    for outcome in outcomes:
        classifier.observe([0], [outcome], [1])


@pytest.mark.parametrize(
    ("start", "then", "expected"),
    [
        # (successes of 100 at the free assignment, replaced by this many of 100, bin)
        (50, 57, 5),  # stays within its bin
        (50, 62, 5),  # over the edge .6, short of the margin
        (50, 63, 6),  # on the margin
        (50, 72, 6),  # past .7 but short of .73: one bin up
        (50, 73, 7),  # two bins up
        (50, 100, 9),  # as far as it goes
        (50, 48, 5),  # below its lower edge, short of the margin
        (50, 47, 4),  # on the margin
        (50, 38, 4),  # past .4 but short of .37: one bin down
        (50, 37, 3),  # two bins down
        (50, 0, 0),  # as far as it goes
        (95, 0, 0),
        (5, 100, 9),
    ],
)
def test_moves_up_and_down_by_one_and_by_many(start, then, expected):
    classifier = visited(start, 100)
    assert classifier.bins([0]) == [start // 10]
    outcomes = np.arange(100) < then
    classifier.observe(np.zeros(100, dtype=int), outcomes.astype(int), np.ones(100, dtype=int))
    assert classifier.pass_rate([0]) == [then / 100]
    assert classifier.bins([0]) == [expected]


def test_without_margin_a_prompt_is_where_its_estimate_is():
    classifier = OnlineDifficultyClassifier(1, hysteresis=0.0, window=10)
    rng = np.random.default_rng(0)
    for _ in range(300):
        classifier.observe([0], [int(rng.random() < 0.5)], [1])
        estimate = round(10 * classifier.pass_rate([0])[0]) / 10 if classifier.visits([0]) >= 10 else None
        if estimate is not None:
            assert classifier.bins([0]) == [min(round(10 * estimate), 9)]


def test_margin_keeps_a_prompt_from_flickering():
    outcomes = np.random.default_rng(4).integers(0, 2, 3000)
    moves = {}
    for margin in (0.0, 0.05):
        classifier = OnlineDifficultyClassifier(1, edges=[0.5], window=100, hysteresis=margin)
        bins = []
        for outcome in outcomes:
            classifier.observe([0], [outcome], [1])
            bins.append(int(classifier.bins([0])[0]))
        moves[margin] = np.count_nonzero(np.diff(bins))
    assert 0 < moves[0.05] < moves[0.0] / 5


def test_a_prompt_twice_in_a_call_is_two_visits_and_one_move():
    # in two calls the first assignment would be bin 0, and 1/2 lies within the margin of the edge
    once, twice = (OnlineDifficultyClassifier(1, edges=[0.5], hysteresis=0.1) for _ in range(2))
    once.observe([0, 0], [0, 1], [1, 1])
    feed(twice, [0, 1])
    assert once.pass_rate([0]) == twice.pass_rate([0]) == [0.5]
    assert (once.bins([0])[0], twice.bins([0])[0]) == (1, 0)


def test_a_call_longer_than_the_window_keeps_its_last_entries():
    classifier = OnlineDifficultyClassifier(2, window=3)
    classifier.observe([0, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1], [1] * 6)
    assert classifier.visits([0, 1]).tolist() == [5, 1]
    np.testing.assert_allclose(classifier.pass_rate([0, 1]), [2 / 3, 1])
    classifier.observe([0], [0], [1])  # window was 0 1 1
    np.testing.assert_allclose(classifier.pass_rate([0]), [2 / 3])


def test_zero_rollouts_are_no_visit():
    classifier = OnlineDifficultyClassifier(2)
    classifier.observe([0, 1], [0, 2], [0, 2])
    assert classifier.visits([0, 1]).tolist() == [0, 1]


def test_unbiased_is_unbiased_where_any_depends_on_the_rollouts():
    """With p = 0.2 the mean of the unbiased pass@4 is 1 - 0.8^4 for 4 or 12 rollouts a visit; "any" sees 12
    as easier."""
    rng = np.random.default_rng(1)
    prompts = np.arange(20_000)
    means = {}
    for estimator in ("any", "unbiased"):
        for n in (4, 12):
            classifier = OnlineDifficultyClassifier(prompts.size, estimator=estimator, k=4, window=4)
            classifier.observe(prompts, rng.binomial(n, 0.2, prompts.size), np.full(prompts.size, n))
            means[estimator, n] = classifier.pass_rate(prompts).mean()
    truth = 1 - 0.8**4
    tolerance = 4 * 0.5 / np.sqrt(prompts.size)
    for key in (("unbiased", 4), ("unbiased", 12), ("any", 4)):
        assert means[key] == pytest.approx(truth, abs=tolerance)
    assert means["any", 12] == pytest.approx(1 - 0.8**12, abs=tolerance)


def test_posterior_recovers_the_population_and_shrinks_towards_it():
    rng = np.random.default_rng(2)
    rates = rng.beta(0.6, 1.8, size=4000)
    prompts = np.arange(rates.size)
    errors = {}
    for estimator in ("unbiased", "posterior"):
        classifier = OnlineDifficultyClassifier(rates.size, estimator=estimator, k=1)
        generator = np.random.default_rng(3)
        for _ in range(4):
            classifier.observe(prompts, generator.binomial(4, rates), np.full(rates.size, 4))
        errors[estimator] = np.mean((classifier.pass_rate(prompts) - rates) ** 2)
    np.testing.assert_allclose(classifier.prior, (0.6, 1.8), rtol=0.1)
    assert errors["posterior"] < 0.9 * errors["unbiased"]


def test_posterior_mean_has_its_closed_form():
    classifier = OnlineDifficultyClassifier(1, estimator="posterior", k=2, window=5)
    assert classifier.pass_rate([0]) == pytest.approx(1 - 1 / 3)  # E (1-p)^2 = 1/3 under Beta(1, 1)
    classifier.observe([0], [1], [3])
    a, b = classifier.prior[0] + 1, classifier.prior[1] + 2
    assert classifier.prior == pytest.approx((0.375 * 2, 0.625 * 2))  # one prompt: rho 1/3, mu = 1.5 / 4
    assert classifier.pass_rate([0]) == pytest.approx(1 - b * (b + 1) / ((a + b) * (a + b + 1)))


def test_posterior_moves_only_when_sure():
    cautious, rash = (
        OnlineDifficultyClassifier(2, edges=[0.5], estimator="posterior", k=1, confidence=c)
        for c in (0.99, 0.5)
    )
    for classifier in (cautious, rash):
        classifier.observe([0], [0], [4])
        classifier.observe([0], [4], [4])
        classifier.observe([0], [1], [1])
    assert cautious.pass_rate([0]) == rash.pass_rate([0]) > 0.5
    assert (cautious.bins([0])[0], rash.bins([0])[0]) == (0, 1)
    for _ in range(10):
        cautious.observe([0], [4], [4])
    assert cautious.bins([0]) == [1]
    assert cautious.bins([1]) == [
        int(cautious.pass_rate([1])[0] >= 0.5)
    ]  # unseen: the bin of the prior's mean


def test_extremes_are_excluded_until_they_leave_and_still_observed():
    classifier = OnlineDifficultyClassifier(3, exclude_extremes=True, window=4, hysteresis=0.0)
    classifier.observe([0, 1, 2], [0, 4, 1], [4, 4, 4])
    assert classifier.bins([0, 1, 2]).tolist() == [0, 9, 9]  # one visit is not enough
    classifier.observe([0, 1, 2], [0, 4, 0], [4, 4, 4])
    assert classifier.bins([0, 1, 2]).tolist() == [-1, -1, 5]
    classifier.observe([0, 1], [1, 0], [4, 4])
    assert classifier.bins([0, 1]).tolist() == [3, 6]
    assert classifier.visits([0, 1]).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (([3], [0], [1]), ValueError, r"prompts\[0\] is 3, above the limit 2"),
        (([0, -1], [0, 0], [1, 1]), ValueError, r"prompts\[1\] is -1, below the limit 0"),
        (([1, 0], [1, 2], [1, 1]), ValueError, r"correct\[1\] is 2, above the 1 rollouts of prompt 0"),
        (([0], [0], [2**32]), ValueError, r"rollouts\[0\] is 4294967296, above the limit 4294967295"),
        (([0, 1], [0, 0], [1]), ValueError, r"rollouts must have shape \(2,\), got shape \(1,\)"),
        (([0], [-1], [1]), ValueError, r"correct\[0\] is -1"),
        (([0], [0], [-2]), ValueError, r"rollouts\[0\] is -2"),
        (([0, 1], [0], [1, 1]), ValueError, r"correct must have shape \(2,\), got shape \(1,\)"),
        (([0], [0.5], [1]), TypeError, "correct must be integers, got dtype float64"),
        (([0], [True], [1]), TypeError, "correct must be integers, got dtype bool"),
        (([[0]], [[0]], [[1]]), ValueError, "prompts must have one axis"),
    ],
)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bad_observations_are_refused_and_change_nothing(call, error, message, estimator):
    classifier = OnlineDifficultyClassifier(3, estimator=estimator)
    classifier.observe([0, 1], [1, 0], [2, 2])
    before = classifier.state_dict()
    with pytest.raises(error, match=message):
        classifier.observe(*call)
    for key, value in classifier.state_dict().items():
        np.testing.assert_array_equal(value, before[key])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"edges": [0.5, 0.4]}, r"edges must ascend strictly inside \(0, 1\), got \[0.5, 0.4\]"),
        ({"edges": [0.0, 0.4]}, "edges must ascend"),
        ({"edges": [0.4, 1.0]}, "edges must ascend"),
        ({"edges": [0.4, float("nan")]}, r"edges\[1\] is nan"),
        ({"edges": 0}, "edges must be at least 1, got 0"),
        ({"edges": []}, "edges is empty; .* 1 for one bin"),
        ({"hysteresis": 0.1}, "hysteresis 0.1 must be smaller than the narrowest bin, 0.1 wide"),
        ({"edges": [0.4, 0.45], "hysteresis": 0.06}, "narrowest bin, 0.05 wide"),
        ({"edges": [0.5, 0.53], "hysteresis": 0.03}, "narrowest bin, 0.03 wide"),
        ({"hysteresis": -0.01}, "hysteresis must be at least 0, got -0.01"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"k": 0}, "k must be at least 1"),
        ({"confidence": 0.4}, "confidence must be at least 0.5, got 0.4"),
        ({"confidence": 1.0}, "confidence must be below 1"),
        (
            {"estimator": "mean"},
            "unknown estimator 'mean'; the known ones are 'any', 'unbiased', 'posterior'",
        ),
    ],
)
def test_bad_settings_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        OnlineDifficultyClassifier(3, **kwargs)


def test_a_state_of_other_settings_or_a_damaged_one_is_refused():
    classifier = OnlineDifficultyClassifier(3, window=50)
    classifier.observe([0], [1], [2])
    state = classifier.state_dict()
    with pytest.raises(ValueError, match="window: saved 50, here 100"):
        OnlineDifficultyClassifier(3).load_state_dict(state)
    damages = (
        ("bits", {**state, "bits": state["bits"][:, 1:]}),
        ("bins.*above the limit 9", {**state, "bins": state["bins"] + np.int8(10)}),
        ("bins.*below the limit 0", {**state, "bins": state["bins"] - np.int8(20)}),
        ("calls are -1", {**state, "calls": -1}),
        ("shapes 0.0", {**state, "prior_a": 0.0}),
        ("shapes 1.0, inf", {**state, "prior_b": np.inf}),
        ("successes", {**state, "successes": state["successes"] + 1}),
        ("visits", {key: value for key, value in state.items() if key != "visits"}),
    )
    fresh = OnlineDifficultyClassifier(3, window=50)
    before = fresh.state_dict()
    for name, damaged in damages:
        with pytest.raises(ValueError, match=name):
            fresh.load_state_dict(damaged)
    for key, value in fresh.state_dict().items():
        np.testing.assert_array_equal(value, before[key])


def test_a_window_of_several_bytes_comes_back():
    classifier = OnlineDifficultyClassifier(3, window=20)
    classifier.observe([1] * 12, [0, 4] * 6, [4] * 12)
    again = OnlineDifficultyClassifier(3, window=20)
    again.load_state_dict(classifier.state_dict())
    assert again.pass_rate([0, 1, 2]).tolist() == [0.0, 0.5, 0.0]


@pytest.mark.parametrize(("k", "expected"), [({}, 8 / 9), ({"k": 2}, 2 / 3)])
def test_an_unseen_prompt_has_the_mean_of_the_uniform_prior(k, expected):
    classifier = OnlineDifficultyClassifier(1, estimator="posterior", **k)
    assert classifier.pass_rate([0])[0] == pytest.approx(expected)  # 1 - E (1 - p)^k, k is 8 by default


def test_the_prior_is_fitted_on_its_schedule_and_comes_back():
    classifier, rng, fitted = (
        OnlineDifficultyClassifier(50, estimator="posterior"),
        np.random.default_rng(0),
        [],
    )
    for call in range(1, 41):
        before = classifier.prior
        classifier.observe(np.arange(50), rng.integers(0, 3, 50), np.full(50, 4))
        if classifier.prior != before:
            fitted.append(call)
    assert fitted == [1, 2, 4, 8, 16, 32]
    again = OnlineDifficultyClassifier(50, estimator="posterior")
    again.load_state_dict(classifier.state_dict())
    assert again.prior == classifier.prior


def test_the_ring_widens_above_what_its_type_holds():
    for most, bytes_more in ((255, 0), (256, 2), (65_535, 2), (65_536, 6)):  # of two counts
        classifier = OnlineDifficultyClassifier(1, estimator="unbiased", window=1)
        small = classifier.nbytes
        classifier.observe([0], [0], [most])
        assert classifier.nbytes == small + bytes_more


def test_more_bins_than_a_byte_counts():
    classifier = OnlineDifficultyClassifier(2, edges=200, hysteresis=0.0)
    classifier.observe([0, 1], [4, 0], [4, 4])
    assert classifier.bins([0, 1]).tolist() == [199, 0]
    assert classifier.bins([0]).dtype == classifier.visits([0]).dtype == np.int64


def test_a_state_of_damaged_counts_is_refused():
    classifier = OnlineDifficultyClassifier(3, estimator="unbiased", window=4)
    classifier.observe([0, 1], [1, 4], [2, 4])
    state, fresh = classifier.state_dict(), OnlineDifficultyClassifier(3, estimator="unbiased", window=4)
    one_right_more = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=np.uint8)
    damages = (
        ("sums are not those", {"correct_sum": state["correct_sum"] + np.uint32(1)}),
        ("sums are not those", {"rollouts_sum": state["rollouts_sum"] + np.uint32(1)}),
        (
            "more correct rollouts than rollouts",
            {
                "correct": state["correct"] + one_right_more,
                "correct_sum": state["correct_sum"] + one_right_more.sum(axis=1, dtype=np.uint32),
            },
        ),
    )
    for words, damaged in damages:
        with pytest.raises(ValueError, match=words):
            fresh.load_state_dict(state | damaged)
        np.testing.assert_array_equal(fresh.visits([0, 1, 2]), [0, 0, 0])
    fresh.load_state_dict(state)


def test_counts_over_255_widen_the_ring_and_travel_in_the_state():
    classifier = OnlineDifficultyClassifier(2, estimator="unbiased", k=1, window=3)
    classifier.observe([0, 1], [100, 1], [200, 4])
    classifier.observe([0, 1], [300, 1], [600, 4])
    again = OnlineDifficultyClassifier(2, estimator="unbiased", k=1, window=3)
    again.load_state_dict(classifier.state_dict())
    for one in (classifier, again):
        one.observe([0], [70_000], [70_000])
        assert one.pass_rate([0, 1]) == pytest.approx([70_400 / 70_800, 2 / 8])


def test_a_million_prompts_fit_in_forty_megabytes():
    tracemalloc.start()
    try:
        classifier = OnlineDifficultyClassifier(1_000_000)
        for start in range(0, 1_000_000, 250_000):
            block = np.arange(start, start + 2048)
            classifier.observe(block, np.ones(block.size, dtype=int), np.full(block.size, 4))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(held, peak) < 40e6
    assert classifier.nbytes == 19_000_000


@pytest.mark.parametrize(("estimator", "each"), [("any", 19), ("unbiased", 213), ("posterior", 213)])
def test_memory_is_what_the_docstring_says(estimator, each):
    assert OnlineDifficultyClassifier(1000, estimator=estimator).nbytes == 1000 * each
    assert str(each) in OnlineDifficultyClassifier.__doc__
