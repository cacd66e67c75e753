"""The shuffled control: the weights of Prompt-GDRO, at bins that do not deserve them."""

import numpy as np
import pytest

from gdro.options import GDROOptions
from gdro.prompt_gdro import PromptGDRO
from gdro.shuffled import ShuffledPromptGDRO

LOSSES = np.linspace(0, 1, 5)
BINS = np.array([0, 1, 1, 2, 3, 3, 3, 4, -1])


def taught(kind, cycles=1, **settings):
    adversary = kind(5, step_size=2.0, **settings)
    for _ in range(cycles):
        adversary.observe(np.arange(5), LOSSES)
    return adversary


def test_the_weights_are_those_of_prompt_gdro_at_other_bins():
    plain, shuffled = taught(PromptGDRO), taught(ShuffledPromptGDRO, seed=3)
    np.testing.assert_array_equal(shuffled.scores, plain.scores)
    np.testing.assert_array_equal(np.sort(shuffled.bin_weights(BINS)), np.sort(plain.bin_weights(BINS)))
    own = shuffled.weights_for(BINS)
    np.testing.assert_array_equal(own[:-1], shuffled.bin_weights(BINS)[BINS[:-1]])
    assert own[-1] == 1.0


def test_over_many_cycles_a_weight_says_nothing_about_its_bin():
    shuffled = taught(ShuffledPromptGDRO, seed=0)
    seen = []
    for _ in range(2000):
        seen.append(shuffled.bin_weights(BINS))
        shuffled.observe(np.arange(5), LOSSES)
    seen = np.array(seen)
    # each entry is one of the five weights, uniformly: the mean of 2,000 lies within five standard errors
    error = seen[0].std() / np.sqrt(len(seen))
    assert np.abs(seen.mean(0) - seen[0].mean()).max() < 5 * error


def test_weights_of_mean_one_keep_that_mean():
    shuffled = taught(ShuffledPromptGDRO, seed=1, normalization="mean_one")
    assert shuffled.weights_for(BINS[:-1]).mean() == pytest.approx(1.0)
    assert np.ptp(shuffled.weights_for(BINS[:-1])) > 0.5


def test_a_control_resumed_goes_on_as_if_never_stopped():
    first = taught(ShuffledPromptGDRO, cycles=3, seed=7)
    again = ShuffledPromptGDRO(5, step_size=2.0, seed=7)
    again.load_state_dict(first.state_dict())
    for control in (first, again):
        control.observe([2], [0.5])
    np.testing.assert_array_equal(first.weights_for(BINS), again.weights_for(BINS))


def test_the_state_of_another_seed_is_refused_and_nothing_changes():
    control = taught(ShuffledPromptGDRO, seed=7)
    before = control.weights_for(BINS)
    with pytest.raises(ValueError, match="seed 8"):
        control.load_state_dict(taught(ShuffledPromptGDRO, seed=8).state_dict())
    np.testing.assert_array_equal(control.weights_for(BINS), before)


def test_the_option_builds_the_control_with_the_seed_of_the_run():
    options = GDROOptions(prompt_gdro=True, prompt_rule="shuffled")
    assert options.controller(4, mean_budget=2, seed=11).prompt.seed == 11
    with pytest.raises(ValueError, match=r"prompt_rule.*'gdro', 'shuffled'|prompt_rule"):
        GDROOptions(prompt_rule="permuted").check_choices()


def test_one_bin_has_nothing_to_permute():
    with pytest.raises(ValueError, match="num_bins of the shuffled control must be at least 2, got 1"):
        ShuffledPromptGDRO(1)
