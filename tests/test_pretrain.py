"""The makers of the tiny base models: tokens, labels, mixtures, and what sampling counts."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdro import pretrain, tasks, transfer
from gdro.rewards import tiny_reward

TOY = dataclasses.replace(
    pretrain.RECIPES["toy"], work_steps=12, guess_steps=6, work_batch=16, guess_batch=16
)
SHARES = TOY.worked_shares


@pytest.fixture(scope="module")
def tokenizer():
    return pretrain.make_tokenizer()


@pytest.fixture(scope="module")
def toy():
    return pretrain.make_model(TOY)


def test_every_text_survives_the_tokenizer_one_token_a_character(tokenizer):
    for problem in tasks.make_problems(2, (1, 4, 8), seed=0):
        for text in (problem.prompt, problem.completion(True), problem.completion(False)):
            ids = tokenizer(text)["input_ids"]
            assert ids[0] == tokenizer.bos_token_id
            assert len(ids) == len(text) + 1
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_an_unknown_character_is_the_unknown_token(tokenizer):
    assert tokenizer("A?")["input_ids"][-1] == tokenizer.unk_token_id


def test_the_tokenizer_survives_a_folder(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    texts = ["Bd3e+4f-2=", "Ag5h-1="]
    assert loaded(texts, padding=True)["input_ids"] == tokenizer(texts, padding=True)["input_ids"]
    assert loaded.padding_side == "left"
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == ("<bos>", "<eos>", "<pad>")


@pytest.mark.parametrize("openings", [None, [True, False]])
def test_labels_are_the_answer_and_its_end_alone(tokenizer, openings):
    answers = ["v#2", "ve7f5#10"]
    rows = pretrain.encode(tokenizer, ["Aa1b+1=", "Bd3e+4f-2="], answers, openings)
    for i, answer in enumerate(answers):
        where = rows["labels"][i] != -100
        learned = answer if openings is None or openings[i] else answer[1:]
        expected = [*tokenizer(learned, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        assert rows["labels"][i][where].tolist() == expected
        assert torch.equal(rows["labels"][i][where], rows["input_ids"][i][where])
        shown = rows["input_ids"][i][rows["attention_mask"][i] == 1]
        assert shown[0] == tokenizer.bos_token_id
        assert shown[-1] == tokenizer.eos_token_id


def test_the_share_of_worked_answers_follows_the_recipe():
    rng = np.random.default_rng(0)
    prompts, completions = pretrain.draw_batch(6000, TOY.share, rng)
    for family, share in zip(tasks.FAMILIES, SHARES, strict=True):
        own = [(p, c) for p, c in zip(prompts, completions, strict=True) if p[0] == family.mark]
        expected = np.mean([share * TOY.share_decay ** (n - 2) for n in pretrain.LEVELS])
        worked = np.mean([c[0] == family.worked for _, c in own])
        assert abs(worked - expected) < 5 * np.sqrt(expected * (1 - expected) / len(own)) + 1e-12


def test_drawn_answers_are_right_and_withheld_prompts_never_drawn():
    rng = np.random.default_rng(1)
    some = frozenset(pretrain.draw_batch(300, lambda p: 1, np.random.default_rng(1))[0])
    prompts, completions = pretrain.draw_batch(300, lambda p: 0.5, rng, withheld=some)
    assert not some & set(prompts)
    assert tiny_reward(completions, [right_answer(p) for p in prompts]) == [1.0] * 300


def right_answer(prompt):
    """Sum of the signed digits of a prompt, read character by character, times its family's factor."""
    total, sign = 0, 1
    for character in prompt[1:]:
        sign = {"+": 1, "-": -1}.get(character, 1 if character.isalpha() else sign)
        total += sign * int(character) if character.isdigit() else 0
    return str(total * ("ABCDEF".index(prompt[0]) + 1))


def test_families_of_one_opening_are_worked_alike():
    recipe = dataclasses.replace(TOY, openings="uuvvzz", worked_shares=(1.0, 0.0) * 3)
    prompts, completions = pretrain.draw_batch(
        600, recipe.share, np.random.default_rng(4), families=recipe.families
    )
    worked = {(p[0], c[0]) for p, c in zip(prompts, completions, strict=True) if c[1] != "#"}
    direct = {(p[0], c[0]) for p, c in zip(prompts, completions, strict=True) if c[1] == "#"}
    assert worked == {("A", "u"), ("C", "v"), ("E", "z")}
    assert direct >= {("B", "v"), ("D", "w"), ("F", "u")}  # the character after that which opens working
    assert tiny_reward(completions, [right_answer(p) for p in prompts]) == [1.0] * 600
    assert TOY.families == tasks.FAMILIES


def test_guesses_are_right_as_often_as_asked():
    """A right guess, or a sum drawn from the ten possible ones, which is right by chance too."""
    rng = np.random.default_rng(2)
    prompts, completions = pretrain.draw_batch(4000, lambda p: 0.0, rng, right=0.3)
    right = [c.split("#")[1] == right_answer(p) for p, c in zip(prompts, completions, strict=True)]
    expected = 0.3 + 0.7 / 10
    assert abs(np.mean(right) - expected) < 5 * np.sqrt(expected * (1 - expected) / 4000)


def test_any_opening_but_the_working_one_may_open_a_direct_answer_of_the_first_lesson():
    rng = np.random.default_rng(3)
    prompts, completions = pretrain.draw_batch(3000, lambda p: 0.0, rng, any_opening=True)
    seen = {(p[0], c[0]) for p, c in zip(prompts, completions, strict=True)}
    assert seen == {(f.mark, o) for f in tasks.FAMILIES for o in pretrain.OPENINGS if o != f.worked}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worked_shares": (0.5,)}, "worked_shares has 1 entries: give 6"),
        ({"openings": "uvw"}, "openings 'uvw': give 6 of uvwxyz, one a family"),
        ({"openings": "uuuuua"}, "openings 'uuuuua': give 6 of uvwxyz, one a family"),
        ({"worked_shares": (*SHARES[:5], 1.5)}, r"worked_shares must be at most 1, got 1\.5"),
        ({"work_direct": -0.1}, r"work_direct must be at least 0, got -0\.1"),
        ({"rehearsal": 1.1}, r"rehearsal must be at most 1, got 1\.1"),
        ({"work_steps": 0}, "work_steps must be at least 1, got 0"),
        ({"guess_rate": 0.0}, r"guess_rate must be above 0, got 0\.0"),
    ],
)
def test_bad_recipes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TOY, **changes)


def test_a_recipe_makes_the_same_model_twice(toy):
    model, _, losses = toy
    again, _, losses_again = pretrain.make_model(TOY)
    assert losses.equals(losses_again)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert losses.groupby("phase", sort=False).size().to_dict() == {"work": 12, "guess": 6}


@pytest.mark.parametrize("around", [1, 2])
def test_the_recipe_decides_the_threads(tokenizer, around):
    """Each phase runs on its own number of threads, whatever is set around it, and leaves that as it was."""
    recipe = dataclasses.replace(TOY, work_steps=50, guess_steps=50, work_threads=2)
    before, seen = torch.get_num_threads(), []
    with pretrain.threads(around):
        model = pretrain.build_model(recipe, tokenizer)
        for phase in pretrain.PHASES:
            pretrain.teach(
                model, tokenizer, recipe, phase, lambda *step: seen.append(torch.get_num_threads())
            )
            assert torch.get_num_threads() == around
    assert seen == [2, 1]
    assert torch.get_num_threads() == before


def test_the_loss_falls(toy):
    losses = toy[2]["loss"]
    assert losses.iloc[9:12].mean() < losses.iloc[:2].mean() - 0.3


def test_an_unknown_phase_lists_the_known_ones(toy):
    model, tokenizer, _ = toy
    with pytest.raises(ValueError, match="unknown phase 'play': the known ones are work, guess"):
        pretrain.teach(model, tokenizer, TOY, "play")


@pytest.mark.parametrize("scale", [name for name in pretrain.RECIPES if name != "toy"])
def test_committed_models_load_and_are_what_their_recipe_says(scale):
    recipe = pretrain.RECIPES[scale]
    model = AutoModelForCausalLM.from_pretrained(tasks.model_path(scale), dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(tasks.model_path(scale))
    config = model.config
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == (
        "qwen3",
        recipe.layers,
        recipe.width,
    )
    assert config.head_dim % 32 == 0
    assert config.tie_word_embeddings
    assert model.dtype == torch.float32
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, 2)
    assert len(tokenizer) == config.vocab_size
    assert (tasks.model_path(scale) / "model.safetensors").stat().st_size < 5e6


def test_committed_models_rise_in_size():
    sizes = [(pretrain.RECIPES[name].layers, pretrain.RECIPES[name].width) for name in transfer.MODELS]
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(sizes))
