"""Training through vLLM in the trainer's own process (TRL's colocate mode), every arm of the full profile.

The CPU build samples in bf16 (TRL leaves the precision to vLLM), so that importance ratios are near 1, not 1.
"""

from collections import Counter
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: tests/with_vllm/run")

from colocated import free, keep_weights_loadable

from gdro import arms, paper_scale, runs, start, study, tasks, training
from gdro.progress import Progress
from gdro.rewards import tiny_reward

CYCLES = 5  # of the same 48 prompts: bins, and so rollouts, differ from the second on
ROWS = 192  # of a generation at tiny-s: 48 prompts x 4
RATIO = "sampling_importance_sampling_ratio_"


@pytest.fixture
def through_vllm(monkeypatch):
    """The scale tiny-s, its completions from vLLM."""
    keep_weights_loadable(monkeypatch.setattr)
    scale = arms.SCALES["tiny-s"]
    extra = {**scale.extra, "use_vllm": True, "vllm_mode": "colocate"}
    scales = MappingProxyType({**arms.SCALES, scale.name: replace(scale, extra=MappingProxyType(extra))})
    for module in (arms, study):
        monkeypatch.setattr(module, "SCALES", scales)
    yield
    free()


@pytest.fixture
def few_prompts(monkeypatch):
    load = tasks.load
    monkeypatch.setattr(tasks, "load", lambda name, split: load(name, split=split).select(range(0, 480, 10)))


def train(arm, store, cycles, seed=7):
    """Steps of a run of the study, in order."""
    folder = study.train_cell("tiny-s", arm, seed, store=store, cycles=cycles, progress="none")
    assert (folder / "model" / "model.safetensors").is_file()
    return runs.read_table(store, runs.RunKey("tiny-s", arm, seed), "steps")


@pytest.mark.parametrize("arm", arms.PROFILES["full"]["arms"])
def test_every_arm_trains(arm, through_vllm, few_prompts, tmp_path, monkeypatch):
    seen = []  # completions that each prompt of a generation got

    def counted(prompts, completions, answer, **columns):
        seen.append(Counter(prompts))
        return tiny_reward(completions, answer)

    monkeypatch.setitem(start.REWARDS, "tiny", counted)
    steps = train(arm, tmp_path, CYCLES)
    ends = steps.dropna(subset=["controller_seconds"])
    ratios = steps[[RATIO + name for name in ("min", "mean", "max")]].dropna().to_numpy()
    print(f"{arm}: importance ratio {ratios[:, 1].mean():.4f}, from {ratios.min():.3f} to {ratios.max():.3f}")
    assert abs(ratios[:, 1] - 1).max() < 0.02  # a completion set beside another prompt would be far off
    assert np.isfinite(steps["loss"]).all()
    assert steps["grad_norm"].max() > 0
    if arms.ARMS[arm].trainer == "dapo-filter":
        assert sum(seen, Counter()).total() == steps["rollouts_total"].iloc[-1] >= CYCLES * ROWS
        return
    assert [counts.total() for counts in seen] == [ROWS] * CYCLES
    planned = [row.tolist() for row in ends["prompt_rollouts"]]
    assert [list(counts.values()) for counts in seen] == planned
    # the square-root law waits until variances differ
    if "rollout_gdro" in arms.ARMS[arm].fields and arm != "sqrt-law":
        assert any(min(row) < 4 < max(row) for row in planned)


def test_an_arm_with_variable_rollouts_learns(through_vllm, tmp_path):
    steps = train("joint", tmp_path, 30)
    rewards_of = steps["reward"].dropna().to_numpy()
    ratios = steps[RATIO + "mean"].dropna().to_numpy()
    print(f"joint, 30 cycles: reward {rewards_of[:5].mean():.3f} to {rewards_of[-5:].mean():.3f}")
    print(f"mean importance ratio of a generation {ratios.min():.4f} to {ratios.max():.4f}")
    assert rewards_of[-5:].mean() > rewards_of[:5].mean() + 0.1
    assert abs(ratios - 1).max() < 0.02
    before, after = (
        evaluated(folder)
        for folder in (tasks.model_path("tiny-s"), tmp_path / "tiny-s" / "joint" / "seed-7" / "model")
    )
    print(f"evaluated through vLLM: mean@8 {before:.3f} before, {after:.3f} after")
    assert after > before + 0.1


def evaluated(folder):
    """Mean@8 of a model on two held-out suites, sampled as the paper's scales are where vLLM trains them."""
    data = tasks.load("tiny", split="test")
    data = data.filter(lambda row: row["suite"] in ("times-1", "times-2"))
    engine = paper_scale.engine({"use_vllm": True, "vllm_max_model_length": 128, "seed": 7})
    plan = {"samples": 8, "max_new_tokens": 28, "seed": 7, "temperature": 1.0}
    shown = Progress("", len(data), "none")
    found = training.evaluate_folder(folder, data, tiny_reward, plan, shown, 0, engine)
    return (found["correct"] / found["k"]).mean()
