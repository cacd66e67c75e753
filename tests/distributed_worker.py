"""What each of two processes runs for test_distributed.py; results go to ``<folder>/<run>-<rank>.pt``."""

import sys
from pathlib import Path

import tiny_model as tiny
import torch
from trl import GRPOTrainer

from gdro.dapo_filter import FilteredGRPOTrainer

ROLLOUTS = [2, 3, 7]
TWO = {
    "per_device_train_batch_size": 6,
    "num_generations": 4,
    "max_steps": 4,
    "ddp_find_unused_parameters": False,
}
CYCLE = {"per_device_train_batch_size": 3, "steps_per_generation": 2, "max_steps": 11}
LEARNING = {
    "prompt_gdro": True,
    "rollout_gdro": True,
    "rollouts_max": 6,
    "bin_column": "kind",
    "selection": "sample",
}
SAVING = {"save_strategy": "steps", "save_steps": 1, "signal": "surrogate", "beta": 0.05}


def record(folder, name, trainer, plans=()):
    rank = trainer.accelerator.process_index
    batches = trainer._buffered_inputs
    result = {
        "parameters": tiny.parameters(trainer),
        "plans": [plan.to_dict() for plan in plans],
        "scores": getattr(trainer, "_scores", None),
        "batches": [
            {key: batch[key] for key in batch if key in ("gdro_slot", "advantages", "prompt_ids")}
            for batch in batches
        ],
        "losses": tiny.losses(trainer),
    }
    if hasattr(trainer, "controller"):
        result["controller"] = trainer.controller.state_dict()
        result["counts"] = [trainer.total_rollouts, trainer.total_completion_tokens]
        for key, ids in (("texts", "prompt_ids"), ("completions", "completion_ids")):
            result[key] = trainer.processing_class.batch_decode(batches[0][ids], skip_special_tokens=True)
    torch.save(result, folder / f"{name}-{rank}.pt")


def run(folder, name, resume=None, rollouts=None, script=True, **changes):
    trainer = tiny.make(folder / name, tiny.real_reward, tiny.prompts(6, kind=[0, 1] * 3), **(TWO | changes))
    plans = tiny.script(trainer, rollouts) if script else ()
    trainer.train(resume_from_checkpoint=resume)
    record(folder, name, trainer, plans)


HARD = set(tiny.TEXTS[:4])


def mostly_flat(prompts, completions, **kwargs):
    """Rewards of four prompts of six never vary."""
    return [0.0 if p in HARD else sum(map(ord, c)) % 5 for p, c in zip(prompts, completions, strict=True)]


def run_filtered(folder):
    trainer = tiny.make(
        folder / "filtered",
        mostly_flat,
        tiny.prompts(6),
        FilteredGRPOTrainer,
        **(TWO | {"max_steps": 1, "max_rounds": 30, "beta": 0.05}),
    )
    plans = tiny.script(trainer)
    trainer.train()
    record(folder, "filtered", trainer, plans)


def main(folder):
    run(folder, "trl", script=False, trainer=GRPOTrainer)
    run(folder, "off")
    run(folder, "uniform", advantage_clip=1e6)
    run(folder, "straddling", rollouts=ROLLOUTS, advantage_clip=1e6)
    run(folder, "learning", **CYCLE, **LEARNING, **SAVING)
    run_filtered(folder)
    run(folder, "resumed", resume=str(folder / "learning" / "checkpoint-9"), **CYCLE, **LEARNING, **SAVING)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
