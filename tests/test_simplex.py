"""Log-domain probabilities: closed forms, invariants, and Lemma 4.1."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdro.simplex import effective_support, entropy, log_softmax, log_softmax_with_floor, softmax_with_floor

WEIGHTS = st.lists(st.floats(-500, 500), min_size=1, max_size=8).map(np.array)
SHARES = st.sampled_from([0.0, 0.01, 0.3, 1.0])


@given(WEIGHTS, SHARES)
def test_floor_and_sum(weights, exploration):
    p = softmax_with_floor(weights, exploration)
    np.testing.assert_allclose(p.sum(), 1)
    assert (p >= exploration / weights.size - 1e-15).all()
    assert (np.diff(p[np.argsort(weights)]) >= -1e-15).all()


@given(WEIGHTS, SHARES, st.floats(-1e3, 1e3))
def test_a_common_shift_changes_nothing(weights, exploration, shift):
    np.testing.assert_allclose(
        softmax_with_floor(weights + shift, exploration), softmax_with_floor(weights, exploration), atol=1e-11
    )


@given(WEIGHTS, SHARES)
def test_logarithms_agree_with_probabilities(weights, exploration):
    logs = log_softmax_with_floor(weights, exploration)
    np.testing.assert_allclose(
        np.exp(logs), softmax_with_floor(weights, exploration), rtol=1e-12, atol=1e-300
    )


def test_by_hand():
    np.testing.assert_allclose(softmax_with_floor([0.0, np.log(3)], 0.0), [0.25, 0.75])
    np.testing.assert_allclose(softmax_with_floor([0.0, np.log(3)], 0.2), [0.3, 0.7])
    np.testing.assert_allclose(
        log_softmax([[0.0, np.log(3)], [1.0, 1.0]]), np.log([[0.25, 0.75], [0.5, 0.5]])
    )
    np.testing.assert_allclose(
        log_softmax([[0.0, 1.0], [np.log(3), 1.0]], axis=0)[:, 0], np.log([0.25, 0.75])
    )


def test_probabilities_that_underflow_keep_their_logarithms():
    np.testing.assert_allclose(log_softmax_with_floor([0.0, -2000.0], 0.0), [0, -2000])
    np.testing.assert_allclose(log_softmax_with_floor([0.0, -2000.0], 0.1)[1], np.log(0.05))
    assert log_softmax([0.0, -np.inf])[1] == -np.inf
    assert np.isfinite(log_softmax([1e308, -1e307])).any()


@given(st.lists(st.floats(0, 3), min_size=2, max_size=5).map(np.array), st.integers(0, 2**32 - 1))
def test_softmax_attains_the_entropic_maximum(losses, seed):
    """Lemma 4.1: max_q q.L + H(q)/eta = log sum exp(eta L) / eta, at softmax(eta L); (25) bounds it."""
    eta = 1.7
    best = softmax_with_floor(eta * losses, 0.0)
    value = best @ losses + entropy(best) / eta
    np.testing.assert_allclose(value, np.log(np.exp(eta * losses).sum()) / eta)
    assert losses.max() - 1e-12 <= value <= losses.max() + np.log(losses.size) / eta + 1e-12
    others = np.random.default_rng(seed).dirichlet(np.ones(losses.size), size=20)
    assert (others @ losses + entropy(others) / eta <= value + 1e-12).all()


def test_entropy_and_support():
    np.testing.assert_allclose(entropy([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]]), [np.log(2), 0, 0.5623351])
    np.testing.assert_allclose(effective_support(np.full(7, 1 / 7)), 7)
    assert effective_support([0.0, 1.0]) == 1
    assert not np.signbit(entropy([1.0, 0.0]))


@pytest.mark.parametrize("bad", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_weights_that_make_no_distribution_are_refused(bad):
    with pytest.raises(ValueError, match="log-weights must be finite"):
        log_softmax(bad)
    with pytest.raises(ValueError, match="log-weights must be finite"):
        softmax_with_floor(bad, 0.1)


def test_rows_are_distributions_of_their_own():
    rows = log_softmax([[0.0, 1.0], [5000.0, 5001.0]])
    np.testing.assert_allclose(rows[0], rows[1])
    with pytest.raises(ValueError, match="at least one finite in each row"):
        log_softmax([[0.0, 0.0], [-np.inf, -np.inf]])


def test_the_first_weights_that_are_refused_are_named():
    with pytest.raises(ValueError, match=r"each row, got \[inf, nan, inf\]; lower"):
        log_softmax([0.0, np.inf, np.nan, np.inf, np.inf])


def test_weights_in_single_precision_are_taken_in_double():
    single = np.array([0.1, 3.3], dtype=np.float32)
    assert log_softmax(single).dtype == np.float64
    assert log_softmax(single).tolist() == log_softmax(single.astype(float)).tolist()


@pytest.mark.parametrize("exploration", [-0.1, 1.1, np.nan])
def test_exploration_outside_the_unit_interval_is_refused(exploration):
    for function in (softmax_with_floor, log_softmax_with_floor):
        with pytest.raises(ValueError, match=r"exploration must be within \[0, 1\], got"):
            function([0.0, 1.0], exploration)


def test_entropy_refuses_what_is_no_distribution():
    with pytest.raises(ValueError, match=r"got -0\.1"):
        entropy([1.1, -0.1])
    with pytest.raises(ValueError, match=r"sum of 0\.8"):
        entropy([[0.5, 0.5], [0.4, 0.4]])
    with pytest.raises(ValueError, match="got nan"):
        effective_support([np.nan, 1.0])


def test_entropy_names_the_entry_and_the_row_that_are_wrong():
    with pytest.raises(ValueError, match=r"got -0\.1"):
        entropy([0.0, 1.0, 0.1, -0.1])
    with pytest.raises(ValueError, match=r"sum of 1\.3"):
        entropy([[0.4, 0.5], [0.5, 0.8], [0.5, 0.5]])


def test_entropy_takes_sums_within_a_millionth_and_counts_in_double_precision():
    assert entropy([0.5, 0.5 + 8e-7]) == pytest.approx(np.log(2))
    with pytest.raises(ValueError, match="must sum to 1"):
        entropy([0.5, 0.5 + 5e-6])
    single = np.array([0.1, 0.9], dtype=np.float32)
    assert entropy(single).dtype == np.float64
    assert entropy(single) == entropy(single.astype(float))
