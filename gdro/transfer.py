"""What a tiny model can do, and what training on one family does to the others.

A pass rate is a property of a policy and a prompt; its histogram says where a model stands. Transfer says
whether families learn for one another: the method's premise is that they do not.
"""

import numpy as np
import pandas as pd

from gdro import evaluation, tasks
from gdro.rewards import tiny_reward

RECORDS = ("pass-rates", "transfer", "training")
_OPENINGS = tuple(family.worked for family in tasks.FAMILIES)


def pass_rates(model, tokenizer, dataset, samples=64, *, seed=0) -> pd.DataFrame:
    """Sample every prompt of a tiny data set at temperature 1 and count what is right and what was worked.

    Returns one row a prompt: suite, prompt_id, level, correct (0..k), k, tokens, worked (of the k samples,
    those opened as the worked answers of some family are) and pass_rate = correct / k.
    """
    worked = dict.fromkeys(dataset["prompt_id"], 0)

    def grade(completions, answer, prompt_id, **columns):
        for text, key in zip(completions, prompt_id, strict=True):
            worked[key] += text.startswith(_OPENINGS)
        return tiny_reward(completions, answer)

    counts = evaluation.evaluate(
        model, tokenizer, dataset, grade, samples, max_new_tokens=tasks.MAX_COMPLETION_OUTSIDE, seed=seed
    )
    return counts.assign(
        worked=counts["prompt_id"].map(worked).astype(int), pass_rate=counts["correct"] / counts["k"]
    )


def bin_shares(pass_rates: pd.DataFrame, bins=10) -> np.ndarray:
    """Share of the prompts in each of ``bins`` uniform bins of the pass rate, right-open, the last closed.

    Returns (B,), summing to 1; Eq. (11), Panaganti et al. 2026, on the pass rate of a single rollout.
    """
    places = np.searchsorted(
        np.arange(1, bins) / bins, pass_rates["pass_rate"].to_numpy() + 1e-9, side="right"
    )
    return np.bincount(places, minlength=bins) / len(places)


def reinforce(model, tokenizer, dataset, *, cycles, learning_rate, folder, prompts=48, rollouts=4, seed=0):
    """Train ``model`` in place by plain GRPO: ``cycles`` generations of prompts x rollouts, two steps each.

    ``folder`` is where the trainer may write. Returns the mean reward of each cycle as an array (cycles,).
    """
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir=str(folder),
        max_steps=2 * cycles,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        per_device_train_batch_size=prompts * rollouts // 2,
        num_generations=rollouts,
        steps_per_generation=2,
        max_completion_length=tasks.MAX_COMPLETION,
        beta=0.001,
        epsilon_high=0.28,
        loss_type="grpo",
        temperature=1.0,
        top_k=0,
        seed=seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="no",
    )
    trainer = GRPOTrainer(model, tiny_reward, args=args, train_dataset=dataset, processing_class=tokenizer)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return np.array([log["reward"] for log in trainer.state.log_history if "reward" in log][::2])


def transfer(
    path, train, test, *, cycles, learning_rate, folder, prompts=16, samples=8, seed=0
) -> pd.DataFrame:
    """Train the model in ``path`` on each suite of ``train`` alone and test it on every suite of ``test``.

    Returns a row a pair: trained, tested, before and after (mean pass rate), worked_before and worked_after
    (share of worked answers), gain = after - before.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    before = _by_suite(pass_rates(model, tokenizer, test, samples, seed=seed))
    frames = []
    for suite in dict.fromkeys(train["suite"]):
        model = AutoModelForCausalLM.from_pretrained(path)
        rows = train.select([i for i, name in enumerate(train["suite"]) if name == suite])
        reinforce(
            model,
            tokenizer,
            rows,
            cycles=cycles,
            learning_rate=learning_rate,
            folder=folder,
            prompts=prompts,
            seed=seed,
        )
        after = _by_suite(pass_rates(model, tokenizer, test, samples, seed=seed))
        pair = before.join(after, lsuffix="before", rsuffix="after").reset_index(names="tested")
        frames.append(pair.assign(trained=suite))
    frame = pd.concat(frames, ignore_index=True).rename(
        columns={"pass_ratebefore": "before", "pass_rateafter": "after"}
    )
    return frame.assign(gain=frame["after"] - frame["before"])


def _by_suite(counts):
    """Mean pass rate and share of worked answers of each suite, in the order of the data set."""
    shares = counts.assign(worked_=counts["worked"] / counts["k"])
    return shares.groupby("suite", sort=False)[["pass_rate", "worked_"]].mean()


def recorded(name: str) -> pd.DataFrame:
    """A table recorded when the committed models were made: "pass-rates", "transfer" or "training"."""
    if name not in RECORDS:
        raise ValueError(f"unknown record {name!r}: the known ones are {', '.join(RECORDS)}")
    return pd.read_csv(tasks.data_root() / "tiny" / f"{name}.csv")
