"""What GDROTrainer adds to a step of training: processor time over GRPOTrainer's, in pairs, in one process.

Not part of the tests. Arms of the study follow per generated token, since they generate other completions.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_trainer.py tiny-m 10
"""

import sys
import tempfile
import time

import numpy as np

from gdro.progress import calm, no_bars

with calm():
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from gdro import GDROConfig, GDROTrainer, tasks
    from gdro.arms import ARMS
    from gdro.rewards import tiny_reward

CYCLES = 6
SHARED = {
    "max_steps": 2 * CYCLES,
    "learning_rate": 1e-5,
    "per_device_train_batch_size": 96,
    "steps_per_generation": 2,
    "num_generations": 4,
    "max_completion_length": 22,
    "beta": 0.001,
    "top_k": 0,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
}
UNIFORM = {
    "rollout_gdro": True,
    "rollouts_min": 4,
    "rollouts_max": 4,
}  # one arm: the variable path, equal rollouts


def seconds(scale, trainer_type, config_type, **fields):
    """Processor seconds of a short training, and the tokens it generated."""
    path = tasks.model_path(scale)
    with tempfile.TemporaryDirectory() as folder, calm(), no_bars():
        args = config_type(output_dir=folder, **(SHARED | fields))
        model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        trainer = trainer_type(
            model, tiny_reward, args=args, train_dataset=tasks.load("tiny"), processing_class=tokenizer
        )
        trainer.remove_callback(PrinterCallback)
        start = time.process_time()
        trainer.train()
        spent = time.process_time() - start
    return spent, trainer.state.num_input_tokens_seen


def main(scale="tiny-m", pairs=10):
    """Print the median ratio with its spread, and seconds a generated token of the other arms."""
    plain = (scale, GRPOTrainer, GRPOConfig)
    seconds(*plain)  # warm up
    for name, fields in (("both adversaries off", {}), ("uniform plan, variable path", UNIFORM)):
        ratios = []
        for i in range(int(pairs)):
            order = [(scale, GDROTrainer, GDROConfig), plain]
            taken = {}
            for run in order if i % 2 else reversed(order):
                taken[run[1]] = seconds(*run, **(fields if run[1] is GDROTrainer else {}))[0]
            ratios.append(taken[GDROTrainer] / taken[GRPOTrainer])
        low, middle, high = np.percentile(ratios, [25, 50, 75])
        spread = f"quartiles {low:.3f} to {high:.3f}, {pairs} pairs"
        print(f"{name}: GDROTrainer / GRPOTrainer {middle:.3f} ({spread})", flush=True)
    spent, tokens = seconds(*plain)
    print(f"grpo (TRL): {1e3 * spent / tokens:.3f} ms a token seen")
    for name, arm in ARMS.items():
        if arm.trainer == "gdro" and not arm.groups:
            spent, tokens = seconds(scale, GDROTrainer, GDROConfig, **arm.fields)
            print(f"{name}: {1e3 * spent / tokens:.3f} ms a token seen")


if __name__ == "__main__":
    main(*sys.argv[1:])
