"""The plans of the recipes: a row is what the recipe's settings plan, and a missing extra is named."""

import importlib.util
import json
from types import SimpleNamespace

import numpy as np
import pytest

from gdro import estimate, planning
from gdro.recipe import parse, recipe


def test_every_recipe_that_names_a_model_is_planned():
    assert len(estimate.names()) == 9
    assert all(recipe(name)["model_name_or_path"] for name in estimate.names())
    found = estimate.table(["1.7B-appendix", "8B-appendix"]).set_index("recipe")
    assert found.loc["1.7B-appendix", "GPUs"] == "8 x h100-80"
    assert found.loc["8B-appendix", "GPU hours"] > found.loc["1.7B-appendix", "GPU hours"] > 0
    # 1000 generations of 1024 completions of 1200 tokens
    assert found["million tokens"].tolist() == pytest.approx([1228.8, 1228.8])
    shares = found[["generating", "training", "log-probabilities"]].sum(axis=1)
    assert shares.tolist() == pytest.approx([1, 1])


def test_a_row_is_the_plan_of_its_settings():
    made, shape, work, device = estimate.planned("4B-released", ["processes=16", "device=h200-141"], 250)
    assert (work.prompts, work.processes, work.prompt_tokens, device) == (512, 16, 250, "h200-141")
    assert work.micro_rows == recipe("4B-released")["per_device_train_batch_size"]
    assert work.sharded
    assert work.old_pass
    assert shape.parameters == shape.trainable == 4_022_468_096
    row = estimate.table(["4B-released"], ["processes=16", "device=h200-141"], 250).iloc[0]
    assert row["peak GB"] == made.peak / 1e9
    assert row["s a generation"] == sum(made.seconds.values())
    assert row["fits"] == (made.peak < 0.9 * planning.DEVICES[device].memory)


def test_a_model_is_counted_by_its_configuration():
    shape = estimate.model_shape(parse(recipe("8B-appendix"), dry_run=True).model)
    assert (shape.layers, shape.hidden, shape.attention, shape.cached) == (36, 4096, 4096, 1024)
    assert 8.1e9 < shape.parameters == shape.trainable < 8.3e9


def test_a_model_that_brings_code_is_refused_and_nobody_is_asked(tmp_path, monkeypatch):
    def asked(*args):
        raise AssertionError("whether to run the model's code")

    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(own), encoding="utf-8")
    (tmp_path / "own.py").write_text("raise AssertionError('the code ran')", encoding="utf-8")
    monkeypatch.setattr("builtins.input", asked)
    with pytest.raises(ValueError, match="trust_remote_code"):
        estimate.model_shape(SimpleNamespace(model_name_or_path=str(tmp_path), model_revision="main"))


def test_an_adapter_needs_its_extra_and_says_so(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else found(name))
    table = estimate.table(["1.7B-lora"])
    assert "needs the extra lora" in table["note"].item()
    assert np.isnan(table["GPU hours"].astype(float).item())


def test_an_unknown_recipe_lists_those_there_are():
    with pytest.raises(ValueError, match="unknown recipe '9B-appendix'"):
        estimate.table(["9B-appendix"])
