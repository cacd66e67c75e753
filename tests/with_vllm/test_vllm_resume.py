"""A run through colocate vLLM that was cut and resumed equals the run that never stopped, bit for bit.

In the trainer's process vLLM draws from the process's own generator, which checkpoints keep. Through a
server it would not hold: the server's generator is in no checkpoint.
"""

import numpy as np
import pytest
import tiny_model as tiny

pytest.importorskip("vllm", reason="vLLM has an environment of its own: tests/with_vllm/run")

from colocated import VLLM, free, keep_weights_loadable, take_tiny_s, without_compiling
from test_resume import SaveAt, assert_continued, run

from gdro import training
from gdro.config import GDROConfig
from gdro.trainer import GDROTrainer

JOINT = {"prompt_gdro": True, "rollout_gdro": True, "rollouts_max": 8, "selection": "sample"}
KINDS = {"bin_column": "kind", "hysteresis": 0.0}  # of the prompts, so that budgets differ at once
# two steps a cycle, two cycles an epoch: step 3 is inside a cycle, 4 its end and an epoch's
TWO_STEPS = {
    "per_device_train_batch_size": 8,
    "steps_per_generation": 2,
    "max_steps": 6,
    "learning_rate": 1e-3,
}
SETTINGS = VLLM | JOINT | KINDS | TWO_STEPS


@pytest.fixture(autouse=True)
def colocate(monkeypatch):
    for patch in (keep_weights_loadable, without_compiling, take_tiny_s):
        patch(monkeypatch.setattr)
    yield
    free()


def trained(folder, resume=None, **changes):
    prompts = tiny.prompts(kind=[0, 1] * 4)
    made = run(folder, resume, tiny.real_reward, dataset=prompts, **(SETTINGS | changes))
    free()
    return made


def completions(trainer):
    return list(trainer._logs["completion"])


def test_resuming_equals_never_having_stopped(tmp_path, monkeypatch):
    whole, plans = trained(tmp_path / "run", callbacks=[SaveAt(3, 4)])
    assert any(np.ptp(plan.rollouts) > 0 for plan in plans)
    assert max(entry["grad_norm"] for entry in tiny.losses(whole)) > 0
    for step in (3, 4):
        resumed, after = trained(tmp_path / f"from {step}", str(tmp_path / f"run/checkpoint-{step}"))
        assert resumed.state.global_step == 6
        assert len(after) == 1
        assert_continued(whole, resumed, plans, after)
        assert completions(resumed) == completions(whole)
    # the generator is what does it: the same prompts, in the same order, get other completions without
    monkeypatch.setattr(GDROTrainer, "_load_rng_state", lambda self, checkpoint: None)
    drawn_anew, after = trained(tmp_path / "anew", str(tmp_path / "run/checkpoint-4"))
    assert after == plans[-1:]
    assert list(drawn_anew._logs["prompt"]) == list(whole._logs["prompt"])
    assert completions(drawn_anew) != completions(whole)


def first_drawn(folder, seed):
    """Completions of a first cycle that every run gives the same prompts."""
    args = GDROConfig(**tiny.arguments(folder, seed=seed, max_steps=1, shuffle_dataset=False), **VLLM)
    model, tokenizer = training.load(tiny.model_folder())
    trainer = training.make_trainer(model, tiny.real_reward, args, tiny.prompts(), tokenizer)
    trainer.train()
    return completions(trainer)


def test_the_seed_of_a_run_decides_what_is_drawn(tmp_path):
    drawn = []
    for number, seed in enumerate((7, 7, 8)):
        drawn.append(first_drawn(tmp_path / str(number), seed))
        free()  # an engine that is collected only later ends what the next one needs
    first, again, other = drawn
    assert first == again
    assert first != other
