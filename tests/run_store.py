"""Small runs in a store, made without training, for the tests of what reads them."""

import numpy as np
import pandas as pd

from gdro import run_writer, runs

BINS = 4
PROMPTS = 6
SETTINGS = {"max_steps": 6, "learning_rate": 0.1, "model_fingerprint": "m"}


def step_row(step, **changes):
    values = {"step": step, "cycle": (step - 1) // 2, "reward": step / 10, "loss": 0.5, "seconds": 0.25}
    counts = {
        "rollouts_total": 8 * step,
        "tokens_total": 80 * step,
        "pass_rate": 0.5,
        "frac_zero_variance": 0.25,
    }
    return {**values, **counts, **changes}


def bin_rows(cycle, weight=(4.0, 3.0, 2.0, 1.0), rollouts=(2.0, 4.0, 6.0, 4.0), prompts=(2, 2, 2, 0)):
    share = np.array(prompts) / max(sum(prompts), 1)
    fixed = dict.fromkeys(("pass_rate", "reward", "loss_mean", "loss_std", "score", "q", "sigma"), 0.5)
    return [
        {
            **fixed,
            **{"cycle": cycle, "bin": b, "prompts": prompts[b], "share": share[b], "weight": weight[b]},
            **{"rollouts": rollouts[b], "rollout_share": 0.25, "arm_probabilities": [0.5, 0.5]},
        }
        for b in range(BINS)
    ]


def evaluations(correct_by_step):
    """{step: PROMPTS counts of 8} as a table of two suites."""
    frames = [
        pd.DataFrame(
            {
                "step": step,
                "suite": ["easy"] * 3 + ["hard"] * 3,
                "prompt_id": [f"p{i}" for i in range(PROMPTS)],
                "level": 2,
                "correct": correct,
                "k": 8,
                "tokens": 40,
            }
        )
        for step, correct in correct_by_step.items()
    ]
    return pd.concat(frames, ignore_index=True)


def record(writer, first, last):
    for step in range(first, last + 1):
        writer.append(step_row(step), bin_rows((step - 1) // 2) if step % 2 == 0 else ())


def finished_run(store, key, correct=(1, 2, 3, 4, 5, 6), base=(0, 0, 0, 1, 1, 1), **settings):
    """A finished run of six steps; returns its key."""
    with run_writer.RunWriter.open(store, key, SETTINGS | settings, {"git_commit": "0" * 40}) as writer:
        record(writer, 1, 6)
        writer.trained(rollouts=48, tokens=480, wall_seconds=1.5)
        writer.finish(evaluations({0: list(base), 6: list(correct)}), evaluation={"samples": 8})
    return key


def snapshot(folder):
    """{path: bytes} of everything below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def key(arm="grpo", seed=0, scale="tiny-s"):
    return runs.RunKey(scale, arm, seed)
