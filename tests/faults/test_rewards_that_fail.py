"""Reward functions that return what is no reward, or do not return: named, and the run can be resumed."""

import signal
import threading

import numpy as np
import pytest
import tiny_model as tiny

from gdro import checkpoints, finite_rewards
from gdro.evaluation import _graded
from gdro.finite_rewards import LARGEST, checked_rewards

SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4}
NO_REWARDS = [
    (None, TypeError, "returned NoneType None; return a list"),
    (1.0, TypeError, r"returned float 1\.0; return a list"),
    ("11111111", TypeError, "returned str '11111111'; return a list"),
    ({0: 1.0}, TypeError, "returned dict"),
    ([1.0] * 7, ValueError, r"returned 7 rewards, but 8|gave 7 rewards for 8"),
    ([1.0] * 9, ValueError, r"returned 9 rewards, but 8|gave 9 rewards for 8"),
    ([], ValueError, r"returned 0 rewards, but 8|gave 0 rewards for 8"),
    ([0.0] * 7 + [1e308], ValueError, r"returned 1e\+308 for completion 7; .* largest is 1e\+16"),
    ([0.0] * 7 + [10**400], ValueError, "for completion 7"),
    ([0.0] * 7 + ["1"], ValueError, "returned '1' for completion 7"),
    ([0.0] * 7 + [float("nan")], ValueError, "returned nan for completion 7"),
    ([0.0] * 7 + [float("inf")], ValueError, "returned inf for completion 7"),
    ([0.0] * 7 + [float("-inf")], ValueError, "returned -inf for completion 7"),
    ([0.0] * 7 + [[1.0]], ValueError, r"returned \[1\.0\] for completion 7"),
    ([0.0] * 7 + [1j], ValueError, "returned 1j for completion 7"),
]
SHOWN = [f"{type(value).__name__} {str(value)[-9:]}" for value, _, _ in NO_REWARDS]


@pytest.mark.parametrize(("value", "error", "match"), NO_REWARDS, ids=SHOWN)
def test_what_is_no_reward_is_refused_in_an_evaluation(value, error, match):
    def broken(completions, **kwargs):
        return value

    with pytest.raises(error, match=rf"'broken' .*{match}"):
        _graded(broken, [{"prompt": "a"}] * 2, ["x"] * 8, 4)


@pytest.mark.faults
@pytest.mark.parametrize(("value", "error", "match"), NO_REWARDS, ids=SHOWN)
def test_what_is_no_reward_is_refused_in_training_before_anything_changed(tmp_path, value, error, match):
    def broken(completions, **kwargs):
        return value

    trainer = tiny.make(tmp_path, broken)
    before = tiny.parameters(trainer)
    with pytest.raises(error, match=rf"'broken' .*{match}"):
        trainer.train()
    tiny.assert_same_parameters(before, tiny.parameters(trainer))
    assert trainer.controller.cycle == 0


def test_the_largest_rewards_are_taken_and_anything_iterable():
    assert checked_rewards((value for value in (LARGEST, -LARGEST, None, True)), "f") == [
        1e16,
        -1e16,
        None,
        True,
    ]
    assert checked_rewards(np.array([0.5, 1.5], dtype=np.float32), "f") == [0.5, 1.5]


@pytest.mark.parametrize("advantages", [{}, {"advantage_clip": 1e6}])
def test_the_largest_rewards_train_without_infinities(tmp_path, advantages):
    def huge(completions, **kwargs):
        return [LARGEST * (-1) ** at for at in range(len(completions))]

    trainer = tiny.train(tmp_path, huge, max_steps=2, **advantages)
    assert all(bool(value.isfinite().all()) for value in tiny.parameters(trainer).values())
    assert trainer.controller.cycle == 2


def test_one_that_takes_for_ever_is_named_and_interrupting_it_leaves_a_run_that_goes_on(
    tmp_path, monkeypatch, request
):
    """It waits for the warning; then comes Ctrl-C, in the third step."""
    # a shell starts its background jobs with this signal ignored, and Python leaves it at that
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    said, calls = threading.Event(), []

    def say(name, seconds):
        calls.append((name, seconds))
        said.set()

    monkeypatch.setattr(finite_rewards, "PATIENCE", 0.01)
    monkeypatch.setattr(finite_rewards, "_warn", say)

    def stuck(completions, trainer_state, **kwargs):
        if trainer_state.global_step == 2:
            assert said.wait(60)
            signal.raise_signal(signal.SIGINT)
        return tiny.short_reward(completions)

    whole = tiny.train(tmp_path / "whole", **SAVING)
    trainer = tiny.make(tmp_path / "cut", stuck, **SAVING)
    said.clear()
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert ("stuck", 0.01) in calls
    assert checkpoints.latest_complete(tmp_path / "cut") == str(tmp_path / "cut" / "checkpoint-2")
    resumed = tiny.make(tmp_path / "cut", **SAVING)
    resumed.train(resume_from_checkpoint=True)
    tiny.assert_same_parameters(tiny.parameters(whole), tiny.parameters(resumed))


def test_the_warning_says_what_to_do_and_a_quick_function_causes_none(monkeypatch, caplog):
    finite_rewards._warn("slow_reward", 300.0)
    (line,) = caplog.messages
    assert line.startswith("the reward function 'slow_reward' has taken more than 300 s so far; an interrupt")
    started = threading.active_count()
    with finite_rewards.named_if_slow("quick"):
        assert threading.active_count() == started + 1
    assert len(caplog.messages) == 1


def test_one_that_raises_stops_the_training_with_its_own_error_and_the_run_goes_on(tmp_path):
    def down(completions, trainer_state, **kwargs):
        if trainer_state.global_step == 2:
            raise ConnectionError("the grader is down")
        return tiny.short_reward(completions)

    whole = tiny.train(tmp_path / "whole", **SAVING)
    with pytest.raises(ConnectionError, match="the grader is down"):
        tiny.train(tmp_path / "cut", down, **SAVING)
    resumed = tiny.make(tmp_path / "cut", **SAVING)
    resumed.train(resume_from_checkpoint=True)
    tiny.assert_same_parameters(tiny.parameters(whole), tiny.parameters(resumed))
