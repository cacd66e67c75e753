"""Advantages of rollout groups of any sizes against a loop over the groups."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdro.advantages import advantages, clipped, group_statistics, total_reward

VALUES = st.one_of(st.floats(-3, 3, width=32), st.just(float("nan")))


@st.composite
def batches(draw):
    """(R, 2) scores with NaN, and the sizes (P,) of the groups."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=5))
    rows = sum(sizes)
    scores = draw(st.lists(st.tuples(VALUES, VALUES), min_size=rows, max_size=rows))
    return torch.tensor(scores, dtype=torch.float32), torch.tensor(sizes)


def spread(values, std):
    values = values[~np.isnan(values)]
    if std == "sample":
        return values.std(ddof=1) if values.size > 1 else np.nan
    return values.std() if values.size else np.nan


def by_loop(scores, weights, sizes, scale, std):
    total = np.array([np.nan if np.isnan(row).all() else np.nansum(row * weights) for row in scores])
    result = []
    for group in np.split(total, np.cumsum(sizes)[:-1]):
        mean = group[~np.isnan(group)].mean() if not np.isnan(group).all() else np.nan
        divisor = {"none": 1.0, "group": spread(group, std) + 1e-4, "batch": spread(total, std) + 1e-4}[scale]
        result.extend((group - mean) / divisor)
    return np.nan_to_num(np.array(result), nan=0.0)


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from(["group", "batch", "none"]), st.sampled_from(["sample", "population"]))
def test_every_scaling_equals_a_loop_over_the_groups(batch, scale, std):
    scores, sizes = batch
    weights = torch.tensor([1.0, 0.5])
    found, _ = advantages(scores, weights, sizes, scale=scale, std=std)
    expected = by_loop(scores.double().numpy(), weights.numpy(), sizes.numpy(), scale, std)
    # float32 against float64: an error of 1e-7 in a reward is up to 1e-3 after division by 1e-4
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-2, atol=2e-2)


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from(["group", "batch", "none"]))
def test_every_group_sums_to_zero(batch, scale):
    scores, sizes = batch
    found, _ = advantages(scores, torch.ones(2), sizes, scale=scale)
    for group in torch.split(found, sizes.tolist()):
        assert abs(group.sum()) < 1e-3 * max(1.0, float(group.abs().max()))


def test_normalize_then_sum_by_hand():
    """Each reward within its group, then the sum over the batch."""
    scores = torch.tensor([[0.0, 2.0], [1.0, 2.0], [1.0, 0.0], [0.0, 1.0], [0.0, 5.0]])
    sizes, weights = torch.tensor([2, 3]), torch.tensor([1.0, 2.0])
    found, _ = advantages(scores, weights, sizes, aggregation="normalize_then_sum")
    total = []
    for group in torch.split(scores, [2, 3]):
        total.append((((group - group.mean(0)) / (group.std(0) + 1e-4)) * weights).sum(1))
    total = torch.cat(total)
    torch.testing.assert_close(found, (total - total.mean()) / (total.std() + 1e-4))


def test_group_statistics_by_hand():
    rewards = torch.tensor([1.0, 3.0, torch.nan, 4.0, 4.0, torch.nan, torch.nan])
    mean, std = group_statistics(rewards, torch.tensor([3, 2, 2]))
    torch.testing.assert_close(mean[:5], torch.tensor([2.0, 2.0, 2.0, 4.0, 4.0]))
    torch.testing.assert_close(std[:5], torch.tensor([2.0**0.5] * 3 + [0.0] * 2))
    assert mean[5:].isnan().all()
    assert group_statistics(rewards, torch.tensor([3, 2, 2]), "population")[1][0] == 1.0


def test_a_row_has_a_total_where_any_function_scored_it():
    scores = torch.tensor([[1.0, torch.nan], [torch.nan, torch.nan], [2.0, 3.0]])
    total = total_reward(scores, torch.tensor([2.0, 10.0]))
    assert total[[0, 2]].tolist() == [2.0, 34.0]
    assert total[1].isnan()


def test_clipping():
    values = torch.tensor([-7.0, 0.5, 9.0])
    assert clipped(values, 5.0).tolist() == [-5.0, 0.5, 5.0]
    assert clipped(values, None) is values


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"scale": "std"}, "unknown scale_rewards 'std'"),
        ({"aggregation": "sum"}, "unknown multi_objective_aggregation 'sum'"),
    ],
)
def test_unknown_options_are_named(option, match):
    with pytest.raises(ValueError, match=match):
        advantages(torch.zeros(4, 1), torch.ones(1), torch.tensor([2, 2]), **option)
