"""What a tiny model can do, and what training on one family does to the others.

A pass rate is a property of a policy and a prompt; its histogram says where a model stands. Transfer says
whether families learn for one another: the method's premise is that they do not.
"""

from functools import partial

import numpy as np
import pandas as pd

from gdro import evaluation, tasks
from gdro.progress import calm, no_bars
from gdro.rewards import tiny_reward

RECORDS = ("pass-rates", "transfer", "training")
MODELS = ("tiny-s", "tiny-m", "tiny-l")


def pass_rates(model, tokenizer, dataset, samples=64, *, seed=0, families=tasks.FAMILIES) -> pd.DataFrame:
    """Sample every prompt of a tiny data set at temperature 1 and count what is right and what was worked.

    Returns one row a prompt: suite, prompt_id, level, correct (0..k), k, tokens, worked (of the k samples,
    those opened as the worked answers of their family are, of ``families``) and pass_rate = correct / k.
    """
    opening = {family.mark: family.worked for family in families}
    worked = dict.fromkeys(dataset["prompt_id"], 0)

    def grade(prompts, completions, answer, prompt_id, **columns):
        for prompt, text, key in zip(prompts, completions, prompt_id, strict=True):
            worked[key] += text[:1] == opening[prompt[0]]
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


def histogram(pass_rates: pd.DataFrame, bins=10) -> pd.DataFrame:
    """`bin_shares` of each model and moment, a row a bin: model, moment, bin (0 the hardest), share."""
    groups = pass_rates.groupby(["model", "moment"], sort=False)
    frames = [
        pd.DataFrame({"model": model, "moment": moment, "bin": range(bins), "share": bin_shares(own, bins)})
        for (model, moment), own in groups
    ]
    return pd.concat(frames, ignore_index=True)


def places(labels) -> np.ndarray:
    """How many equal labels stand before each one.

    >>> places(["a", "b", "a", "a"]).tolist()
    [0, 0, 1, 2]
    """
    labels = pd.Series(list(labels))
    return labels.groupby(labels).cumcount().to_numpy()


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
        lr_scheduler_type="constant",
        warmup_steps=0,
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
    return np.array([log["reward"] for log in trainer.state.log_history if "reward" in log])


def transfer(
    path,
    train,
    test,
    *,
    cycles,
    learning_rate,
    folder,
    prompts=16,
    samples=8,
    seed=0,
    families=tasks.FAMILIES,
) -> pd.DataFrame:
    """Train the model in ``path`` on each suite of ``train`` alone and test it on every suite of ``test``.

    Returns a row a pair: trained, tested, before and after (mean pass rate), worked_before and worked_after
    (share of worked answers), gain = after - before.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    count = partial(
        pass_rates, tokenizer=tokenizer, dataset=test, samples=samples, seed=seed, families=families
    )
    before = _by_suite(count(AutoModelForCausalLM.from_pretrained(path)))
    frames = []
    for suite in dict.fromkeys(train["suite"]):
        model = AutoModelForCausalLM.from_pretrained(path)
        rows = train.select([i for i, name in enumerate(train["suite"]) if name == suite])
        given = {"cycles": cycles, "learning_rate": learning_rate, "folder": folder, "prompts": prompts}
        reinforce(model, tokenizer, rows, seed=seed, **given)
        after = _by_suite(count(model))
        pair = before.add_suffix("_before").join(after.add_suffix("_after")).reset_index(names="tested")
        frames.append(pair.assign(trained=suite))
    frame = pd.concat(frames, ignore_index=True).rename(
        columns={"pass_rate_before": "before", "pass_rate_after": "after"}
    )
    return frame.assign(gain=frame["after"] - frame["before"])


def measure(
    path,
    train,
    test,
    *,
    samples,
    cycles,
    learning_rate,
    transfer_cycles,
    folder,
    families=tasks.FAMILIES,
    report=None,
) -> dict[str, pd.DataFrame]:
    """Everything that is recorded of a base model in ``path``, beside the losses of its making.

    "pass-rates": of the training prompts, before and after ``cycles`` of plain GRPO (column moment);
    "transfer": as `transfer` gives it, at the same learning rate. ``report(text)`` says what comes next.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tell = report or (lambda text: None)
    run = {"learning_rate": learning_rate, "folder": folder}
    with calm(), no_bars():
        model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        tell(f"{samples} samples of each training prompt")
        before = pass_rates(model, tokenizer, train, samples, families=families)
        tell(f"{cycles} cycles of plain GRPO")
        reinforce(model, tokenizer, train, cycles=cycles, **run)
        after = pass_rates(model, tokenizer, train, samples, families=families)
        tell(f"{transfer_cycles} cycles on each family alone")
        pairs = transfer(path, train, test, cycles=transfer_cycles, families=families, **run)
    both = [before.assign(moment="before"), after.assign(moment="after")]
    return {"pass-rates": pd.concat(both, ignore_index=True), "transfer": pairs}


def _by_suite(counts):
    """Mean pass rate and share of worked answers of each suite, in the order of the data set."""
    shares = counts.assign(worked=counts["worked"] / counts["k"])
    return shares.groupby("suite", sort=False)[["pass_rate", "worked"]].mean()


def keep(frames: dict, folder):
    """Write the records of a model into ``folder`` as CSV, one file each; an unknown name is refused."""
    for name in frames:
        _known(name)
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")


def _known(name):
    if name not in RECORDS:
        raise ValueError(f"unknown record {name!r}: the known ones are {', '.join(RECORDS)}")


def recorded(name: str, models=MODELS) -> pd.DataFrame:
    """A table recorded when the committed models were made: "pass-rates", "transfer" or "training".

    Rows as the makers give them, with a column model; pass rates with the moment, "before" or "after" plain
    GRPO.
    """
    _known(name)
    folders = {model: tasks.data_root() / "tiny" / model for model in models}
    frames = [pd.read_csv(f / f"{name}.csv").assign(model=model) for model, f in folders.items()]
    return pd.concat(frames, ignore_index=True)
