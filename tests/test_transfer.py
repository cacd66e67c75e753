"""What is measured of a tiny model: pass rates, and what one family's training does to the others."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from gdro import pretrain, tasks, tiny_figures, transfer

TOY = dataclasses.replace(
    pretrain.RECIPES["toy"], work_steps=12, guess_steps=12, work_batch=16, guess_batch=16
)


@pytest.fixture(scope="module")
def toy():
    model, tokenizer, _ = pretrain.make_model(TOY)
    return model, tokenizer


def first_character(model, tokenizer, prompt):
    """Probabilities of the first character of an answer, by token."""
    with torch.no_grad():
        return torch.softmax(model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1], -1)


def test_pass_rates_follow_the_policy(toy):
    """The share of worked answers is the probability of the character that opens them, on every prompt."""
    model, tokenizer = toy
    data = tasks.load("tiny").select([0, 100, 200, 300])
    counts = transfer.pass_rates(model, tokenizer, data, samples=2000, seed=3)
    assert counts["prompt_id"].tolist() == list(data["prompt_id"])
    assert (counts["pass_rate"] == counts["correct"] / 2000).all()
    for row, prompt in zip(counts.itertuples(), data["prompt"], strict=True):
        family = next(f for f in tasks.FAMILIES if f.mark == prompt[0])
        first = first_character(model, tokenizer, prompt)
        p = first[tokenizer.convert_tokens_to_ids(family.worked)].item()
        assert abs(row.worked / 2000 - p) < 5 * np.sqrt(p * (1 - p) / 2000) + 1e-3


def test_bin_edges_belong_to_the_upper_bin():
    frame = pd.DataFrame({"pass_rate": [0.0, 0.05, 0.1, 0.3, 0.7, 1.0]})
    assert transfer.bin_shares(frame).tolist() == pytest.approx(np.array([2, 1, 0, 1, 0, 0, 0, 1, 0, 1]) / 6)


# plain TRL, as it comes: it asks for pinned memory, and says that a CPU has none
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_everything_that_is_recorded_of_a_model(toy, tmp_path):
    model, tokenizer = toy
    model.save_pretrained(tmp_path / "toy")
    tokenizer.save_pretrained(tmp_path / "toy")
    train = tasks.load("tiny").filter(lambda row: row["suite"] in ("times-1", "times-2"))
    test = tasks.load("tiny", split="test").select([0, 1, 200, 201, 1200, 1201])
    said = []
    frames = transfer.measure(
        tmp_path / "toy",
        train,
        test,
        samples=2,
        cycles=1,
        learning_rate=1e-4,
        transfer_cycles=1,
        folder=tmp_path / "runs",
        report=said.append,
    )
    assert len(said) == 3
    assert frames["pass-rates"].groupby("moment").size().to_dict() == {"before": 160, "after": 160}
    pairs = frames["transfer"]
    suites = ("times-1", "times-2", "outside")
    assert set(zip(pairs["trained"], pairs["tested"], strict=True)) == {
        (a, b) for a in suites[:2] for b in suites
    }
    assert np.allclose(pairs["gain"], pairs["after"] - pairs["before"])
    assert pairs.groupby("tested")["before"].nunique().max() == 1
    transfer.keep(frames, tmp_path / "kept")
    again = pd.read_csv(tmp_path / "kept" / "transfer.csv")
    pd.testing.assert_frame_equal(again, pairs, rtol=1e-5, check_dtype=False)
    with pytest.raises(ValueError, match="unknown record 'other'"):
        transfer.keep({"other": pairs}, tmp_path / "kept")


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_plain_grpo_raises_what_is_rewarded(tmp_path):
    """On a family that the smallest base model works in every second time, a few cycles raise the reward."""
    model, tokenizer = load("tiny-s")
    data = tasks.load("tiny", suite="times-2")
    rewards = transfer.reinforce(
        model, tokenizer, data, cycles=12, learning_rate=3e-4, folder=tmp_path, prompts=16
    )
    assert rewards.shape == (12,)
    assert ((rewards >= 0) & (rewards <= 1)).all()
    assert rewards[-4:].mean() > rewards[:4].mean() + 0.1


def test_the_recorded_pass_rates_reach_every_bin_and_the_models_differ():
    frame = transfer.recorded("pass-rates")
    assert list(dict.fromkeys(frame["model"])) == list(transfer.MODELS)
    means = frame.groupby(["moment", "model"])["pass_rate"].mean()
    for model in transfer.MODELS:
        own = frame[(frame["model"] == model) & (frame["moment"] == "before")]
        assert own["k"].eq(64).all()
        assert len(own) == 480
        shares = transfer.bin_shares(own)
        assert shares.sum() == pytest.approx(1)
        assert ((shares >= tiny_figures.WANTED[0]) & (shares <= tiny_figures.WANTED[1])).all(), shares
    for moment in ("before", "after"):
        assert np.diff(np.sort(means[moment])).min() > 0.01


def test_the_recorded_base_models_are_the_committed_ones():
    """Sampling a few prompts again gives counts that the recorded pass rates explain."""
    for name in transfer.MODELS:
        model, tokenizer = load(name)
        data = tasks.load("tiny").select(range(0, 480, 24))
        counts = transfer.pass_rates(model, tokenizer, data, samples=32, seed=5)
        frame = transfer.recorded("pass-rates").query("model == @name and moment == 'before'")
        known = frame.set_index("prompt_id")["pass_rate"].loc[counts["prompt_id"]].to_numpy()
        spread = np.sqrt(np.sum(known * (1 - known)) * (1 / 32 + 1 / 64)) / len(known)
        assert abs(counts["pass_rate"].mean() - known.mean()) < 5 * spread


def load(name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tasks.model_path(name)
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def test_an_unknown_record_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown record 'nothing': the known ones are pass-rates, transfer"):
        transfer.recorded("nothing")


def test_figures_show_what_they_are_given():
    rates = transfer.recorded("pass-rates")
    figure = tiny_figures.pass_rate_histograms(rates)
    assert len(figure.axes) == 6
    drawn = [bar.get_height() for bar in figure.axes[0].patches]
    own = rates[(rates["model"] == "tiny-s") & (rates["moment"] == "before")]
    assert drawn == pytest.approx(transfer.bin_shares(own).tolist())
    pairs = transfer.recorded("transfer")
    figure = tiny_figures.transfer_matrices(pairs)
    shown = [float(text.get_text()) for text in figure.axes[0].texts]
    first = pairs[pairs["model"] == "tiny-s"].pivot(index="trained", columns="tested", values="gain")
    order = list(dict.fromkeys(pairs["trained"])), list(dict.fromkeys(pairs["tested"]))
    assert np.allclose(shown, 100 * first.loc[order[0], order[1]].to_numpy().ravel(), atol=0.51)
