"""What GDROTrainer adds to a step of training, over GRPOTrainer's, and what whole runs of the arms cost.

Not part of the tests. Processor time of this one process; pairs and arms take turns, so that other work on
the machine disturbs both alike.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_trainer.py pairs --scale tiny-m --times 10
    OMP_NUM_THREADS=1 python tests/benchmarks/bench_trainer.py arms --scale tiny-s --times 2

With `--keep` the rows go to `data/overhead`, which notebook `10_overhead` reads.
"""

import argparse
import tempfile
import time

import pandas as pd

from gdro import questions, runs, study, timing
from gdro.progress import calm, no_bars

with calm():
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from gdro import GDROConfig, GDROTrainer, tasks
    from gdro.rewards import tiny_reward

BAR = 1.03  # on the median ratio of the pairs
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
    """Processor seconds of a short training."""
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
        return time.process_time() - start


def pairs(scale, times):
    """Processor seconds of GDROTrainer over GRPOTrainer's. Columns: scale, path, pair, ratio."""
    plain = (scale, GRPOTrainer, GRPOConfig)
    seconds(*plain)  # warm up
    rows = []
    for path, fields in (("both adversaries off", {}), ("uniform plan, variable path", UNIFORM)):
        for i in range(times):
            order = [(plain, {}), ((scale, GDROTrainer, GDROConfig), fields)]
            taken = {run[1]: seconds(*run, **own) for run, own in (order if i % 2 else reversed(order))}
            rows.append([scale, path, i, taken[GDROTrainer] / taken[GRPOTrainer]])
    return pd.DataFrame(rows, columns=["scale", "path", "pair", "ratio"])


def arms(scale, times):
    """Whole runs of the main arms, seed by seed. Columns: scale, arm, seed, seconds, tokens, rollouts."""
    seconds(scale, GRPOTrainer, GRPOConfig)  # warm up
    rows = []
    for seed in range(times):
        for arm in questions.MAIN_ARMS:
            with tempfile.TemporaryDirectory() as store:
                start = time.process_time()
                study.train_cell(scale, arm, seed, store, progress="none")
                spent = time.process_time() - start
                made = runs.read_manifest(store, runs.RunKey(scale, arm, seed))
            rows.append([scale, arm, seed, spent, made["tokens"], made["rollouts"]])
            print(*rows[-1], flush=True)
    return pd.DataFrame(rows, columns=["scale", "arm", "seed", "seconds", "tokens", "rollouts"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("pairs", "arms"))
    parser.add_argument("--scale", default="tiny-m")
    parser.add_argument("--times", type=int, default=10, help="pairs of each path, or seeds of each arm")
    parser.add_argument("--keep", action="store_true", help="write the rows to data/overhead")
    chosen = parser.parse_args()
    found = {"pairs": pairs, "arms": arms}[chosen.what](chosen.scale, chosen.times)
    print(found.to_string())
    if chosen.keep:
        timing.keep(chosen.what, found)
    if chosen.what == "pairs":
        summed = timing.ratios(found)
        print(summed.to_string())
        assert (summed["median"] <= BAR).all(), f"a median above {BAR}"


if __name__ == "__main__":
    main()
