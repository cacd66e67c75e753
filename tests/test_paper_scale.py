"""The paper's scales: every setting from one recipe, every arm through the trainer's own dry run, and what a
machine lacks named before anything is written."""

import dataclasses
import itertools
import json

import pytest
import stand_in
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from trl import ModelConfig

from gdro import arms, paper_scale, planning, ready, static_groups, study, study_arms, train
from gdro.config import GDROConfig
from gdro.machine import ATTENTION, FIELDS
from gdro.recipe import RunArguments, parse, recipe
from gdro.recipe_files import DERIVED

NAMES = ("1.7B", "4B", "8B")
APART = {"output_dir", "logging_dir", "run_name", "preset", "data_seed", "model_init_kwargs"}


def fields_of(chosen):
    """What the trainer makes of a cell's settings: {field: value}."""
    values = {name: value for name, value in chosen.items() if name not in DERIVED}
    settings = parse(values | {"output_dir": "out"}, dry_run=True)
    plain = {f.name: getattr(settings.trainer, f.name) for f in dataclasses.fields(settings.trainer)}
    return settings.run, {name: value for name, value in plain.items() if name not in APART}


@pytest.mark.parametrize("name", NAMES)
def test_a_scale_is_its_recipe(name):
    run, args = parse(recipe(f"{name}-appendix"), dry_run=True).run, recipe(f"{name}-appendix")
    scale = study.SCALES[name]
    assert (scale.name, scale.family, scale.task) == (name, "paper", "dapo")
    assert (scale.prompts, scale.rollouts, scale.cycles) == (run.prompts, 4, run.generations)
    assert scale.model == args["model_name_or_path"]
    assert scale.model in planning.QWEN3
    assert scale.decoding == {"temperature": 0.6, "top_p": 0.8, "top_k": 20}
    assert scale.steps == run.generations * run.minibatches == study.settings(name, "grpo", 0)["max_steps"]
    assert study.settings(name, "grpo", 0, cycles=3)["max_steps"] == 6


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("arm", "adversaries"), [("grpo", (False, False)), ("joint", (True, True))])
def test_the_papers_arms_are_the_appendix_recipe(name, arm, adversaries):
    """The recipe says so by its preset, the arm by stating every field: field by field they agree."""
    said = dict(zip(("prompt_gdro", "rollout_gdro"), adversaries, strict=True))
    assert fields_of(study.settings(name, arm, 0))[1] == fields_of(recipe(f"{name}-appendix") | said)[1]


@pytest.mark.parametrize("arm", [arm for arm in study.ARMS if arm != "dapo-filter"])
def test_an_arm_differs_from_grpo_in_what_it_does_at_a_tiny_scale(arm):
    base, own = (study.settings("1.7B", name, 0) for name in ("grpo", arm))
    differing = {name for name in {*base, *own} if base.get(name) != own.get(name)}
    tiny_base, tiny_own = (study.settings("tiny-s", name, 0) for name in ("grpo", arm))
    tiny = {name for name in {*tiny_base, *tiny_own} if tiny_base.get(name) != tiny_own.get(name)}
    assert differing - {"groups", "prompts"} == tiny
    assert own["prompts"] * own["num_generations"] == 1024
    assert own["learning_rate"] / base["learning_rate"] == pytest.approx(study.ARMS[arm].rate)


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """A folder with a training set of DAPO's schema, large enough for a generation of the paper's size."""
    folder = tmp_path_factory.mktemp("sets")
    rows = [{"prompt": f"What is {i}+{i % 7}?", "solution": str(i + i % 7)} for i in range(600)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "dapo.jsonl").write_text(text, encoding="utf-8")
    return folder


EVERY = [("1.7B", arm) for arm in study.ARMS] + [(name, arm) for name in NAMES[1:] for arm in study_arms.MAIN]


@pytest.mark.parametrize(("name", "arm"), EVERY)
def test_every_cell_passes_the_trainers_dry_run(sums, name, arm):
    chosen = study.settings(name, arm, 3)
    assert json.loads(json.dumps(chosen)) == chosen
    run, args = fields_of(chosen)
    assert (args["seed"], args["beta"], args["loss_type"], args["epsilon_high"]) == (3, 0.001, "grpo", 0.28)
    assert args["generation_batch_size"] == 1024
    assert run.trainer == ("dapo-filter" if arm == "dapo-filter" else "gdro")
    before = sorted(sums.iterdir())
    text = study.plan_cell(name, arm, 3, machine={"data_path": str(sums)})
    assert f"Qwen/Qwen3-{name}-Base on dapo: 600 rows" in text
    rollouts = study.ARMS[arm].mean_budget or 4
    assert f"{1024 // rollouts} prompts x {rollouts} rollouts, 1000 generations, 8 x h100-80" in text
    assert "GPU hours in all" in text
    assert sorted(sums.iterdir()) == before


def test_a_tiny_scale_has_nothing_to_plan():
    assert study.plan_cell("tiny-s", "grpo", 0, cycles=3) == (
        "tiny-s: 192 rollouts and two optimiser steps a cycle, 6 steps, on the CPU"
    )


def test_fixed_groups_are_by_length_and_equally_large():
    found = static_groups.by_length(["x" * (i % 25) for i in range(100)])
    assert sorted(set(found)) == [f"length {group:02d}" for group in range(10)]
    lengths = {group: [i % 25 for i in range(100) if found[i] == group] for group in set(found)}
    assert {len(own) for own in lengths.values()} == {10}
    ordered = [lengths[group] for group in sorted(lengths)]
    assert all(max(a) <= min(b) for a, b in itertools.pairwise(ordered))
    with pytest.raises(ValueError, match="3 prompts cannot be parted into 10"):
        static_groups.by_length(["a", "b", "c"])


# machines


def test_a_machine_sets_what_belongs_to_it_and_nothing_else():
    machine = {"processes": 4, "use_vllm": False, "vllm_gpu_memory_utilization": 0.3, "data_path": "sets"}
    chosen = study.settings("1.7B", "grpo", 0, machine=machine)
    assert (chosen["processes"], chosen["steps_per_generation"]) == (4, 64)
    with pytest.raises(ValueError, match="machine sets 'prompts', which belongs to the study"):
        study.settings("1.7B", "grpo", 0, machine={"prompts": 64})
    with pytest.raises(ValueError, match=r"1024 rows .* do not divide .* 4 x 3 processes"):
        study.settings("1.7B", "grpo", 0, machine={"processes": 3})


@pytest.mark.parametrize(
    ("machine", "error", "message"),
    [
        ({"processes": 0}, ValueError, "processes must be at least 1, got 0"),
        ({"per_device_train_batch_size": 0}, ValueError, "per_device_train_batch_size must be at least 1"),
        ({"processes": "4"}, TypeError, "processes"),
        ({"processes": True}, TypeError, "processes"),
        (["processes"], TypeError, "machine must be a mapping"),
        ("processes=4", TypeError, "machine must be a mapping"),
        ({1: 2}, ValueError, "machine sets 1"),
        ({"processes": "two"}, TypeError, "processes must be a whole number, got 'two'"),
        ({"bf16": "yes"}, TypeError, "bf16 must be True or False, got 'yes'"),
        ({"use_vllm": "yes"}, TypeError, "use_vllm must be True or False, got 'yes'"),
        ({"sharding": "fsdp3"}, ValueError, "unknown sharding 'fsdp3'; .* 'none', 'fsdp2', 'zero3'"),
        ({"attn_implementation": "flash2"}, ValueError, "unknown attn_implementation 'flash2'; .* 'sdpa'"),
        ({"attn_implementation": "owner/"}, ValueError, "kernels of the hub as 'owner/name'"),
        ({"vllm_mode": "colocated"}, ValueError, "unknown vllm_mode 'colocated'; .* 'colocate', 'server'"),
        ({"vllm_gpu_memory_utilization": 3}, ValueError, "utilization must be below 1, got 3"),
        ({"vllm_max_model_length": 4096}, ValueError, "above max_completion_length=4096, got 4096"),
        ({"vllm_tensor_parallel_size": 3}, ValueError, "size=3 does not divide processes=8"),
        ({"vllm_server_port": "http"}, TypeError, "vllm_server_port must be a whole number, got 'http'"),
        ({"vllm_mod": "server"}, ValueError, "machine sets 'vllm_mod', .*vllm_mode, "),
        ({"vllm_importance_sampling_correction": False}, ValueError, "belongs to the study"),
        ({"mean_completion": -4}, ValueError, "mean_completion must be at least 1, got -4"),
        ({"device": "tpu"}, ValueError, "unknown device 'tpu'"),
        ({"data_path": 3}, TypeError, "data_path must be a text, got 3"),
        ({"bf16": "no", "vllm_mode": "x", "processes": 0}, ValueError, "(?s)processes.*bf16.*vllm_mode"),
    ],
)
def test_a_machine_that_cannot_be_is_refused_by_name(tmp_path, machine, error, message):
    for refuse in (study.settings, study.plan_cell, study.train_cell):
        more = {"store": tmp_path} if refuse is study.train_cell else {}
        with pytest.raises(error, match=message):
            refuse("1.7B", "joint", 0, machine=machine, **more)
    assert not list(tmp_path.iterdir())


def test_what_a_machine_can_have_is_what_the_libraries_take():
    assert set(ALL_ATTENTION_FUNCTIONS.valid_keys()) - {"paged|eager"} <= set(ATTENTION)
    assert study.settings("1.7B", "grpo", 0, machine={"attn_implementation": "owner/name@v1:forward"})
    known = {f.name for kind in (RunArguments, GDROConfig, ModelConfig) for f in dataclasses.fields(kind)}
    assert set(FIELDS) <= known
    # of vLLM's fields the study keeps those that change what is sampled and how it is weighted
    kept = {name for name in known - set(FIELDS) if name.startswith("vllm_")}
    assert all(name.startswith(("vllm_importance_sampling_", "vllm_structured_")) for name in kept)


def test_a_run_is_the_same_wherever_its_data_lie():
    here, there = (
        paper_scale.identity(study.settings("4B", "grpo", 0, machine={"data_path": place})) for place in "ab"
    )
    assert here == there
    assert not set(here) & set(paper_scale.PLACES)
    changed = study.settings("4B", "grpo", 0, machine={"processes": 4, "vllm_mode": "server"})
    assert paper_scale.compared(changed) == paper_scale.compared(study.settings("4B", "grpo", 0))


def test_held_out_prompts_are_sampled_by_the_engine_that_trains():
    name, options, _ = paper_scale.engine(study.settings("4B", "grpo", 1))
    assert (name, options["max_model_len"], options["seed"]) == ("vllm", 7296, 1)
    assert options["gpu_memory_utilization"] == 0.5
    machine = {"use_vllm": False, "attn_implementation": "sdpa"}
    name, options, rows = paper_scale.engine(study.settings("4B", "grpo", 1, machine=machine))
    assert (name, options["device_map"], rows) == ("transformers", "cuda", 64)
    assert options["attn_implementation"] == "sdpa"


def test_a_machines_engine_is_the_one_that_evaluates(monkeypatch):
    """Every field of vLLM's that the offline engine has; it has no mode, no server and nothing to wake."""
    own = {"gpu_memory_utilization": 0.8, "tensor_parallel_size": 2, "model_impl": "transformers"}
    machine = {f"vllm_{name}": value for name, value in own.items()} | {"vllm_max_model_length": 8192}
    only_training = {"vllm_mode": "server", "vllm_server_port": 80, "vllm_enable_sleep_mode": False}
    chosen = study.settings("4B", "grpo", 1, machine=machine | only_training)
    expected = {"dtype": "bfloat16", "seed": 1, "max_model_len": 8192, **own}
    assert paper_scale.engine(chosen) == ("vllm", expected, None)
    assert study.job("4B", "evaluate", machine)["gpu"] == 2
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(ready, "find_spec", lambda module: None)
    lacks = ready.machine(paper_scale.evaluating(chosen), "vllm_tensor_parallel_size")
    assert lacks[0].startswith("2 GPUs are needed, and 1 are here")
    assert "machine={'vllm_tensor_parallel_size': 1}" in lacks[0]
    plain = study.settings("4B", "grpo", 1, machine={"use_vllm": False})
    lacks = ready.machine(paper_scale.evaluating(plain), "vllm_tensor_parallel_size")
    assert [reason.split(" ")[0] for reason in lacks] == ["attn_implementation='flash_attention_2'"]


def test_a_job_gets_what_its_scale_needs():
    assert study.job("tiny-m", "train") == study.job("tiny-m", "evaluate")
    assert study.job("tiny-m", "train")["gpu"] == 0
    whole, half = (study.job("8B", "train", machine) for machine in (None, {"processes": 4}))
    assert (whole["gpu"], half["gpu"]) == (8, 4)
    assert whole["mem_mb"] == 2 * half["mem_mb"] == 768000
    assert whole["cpus"] == 64
    assert study.job("8B", "evaluate")["gpu"] == 1
    assert study.job("1.7B", "train", {"use_cpu": True})["gpu"] == 0
    with pytest.raises(ValueError, match="unknown step 'draw'"):
        study.job("8B", "draw")


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without a GPU, a network and the packages of an engine, whose hub's cache is empty."""
    from huggingface_hub import constants

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(ready, "find_spec", lambda module: None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_had_is_named_with_how_to_get_it_and_nothing_is_written(bare, tmp_path, name):
    with pytest.raises(ready.NotReady) as refused:
        study.train_cell(name, "joint", 0, tmp_path / "store")
    text, scale = str(refused.value), study.SCALES[name]
    revision = study.settings(name, "joint", 0)["model_revision"]
    assert f"`hf download {scale.model} --revision {revision}`" in text
    assert "of open-r1/DAPO-Math-17k-Processed at" in text
    assert text.count("given by machine={'data_path': ...}") == 1
    assert "`path`" not in text
    assert "8 GPUs are needed, and 0 are here: run it where there are as many\n" in text
    assert "needs the package flash_attn: install flash-attn, or machine=" in text
    with pytest.raises(
        ready.NotReady, match=r"(?s)cannot be evaluated here.*use_vllm=True needs.*gpqa"
    ) as refused:
        ready.to_evaluate(scale, None, None, study.settings(name, "joint", 0))
    assert "1 GPUs are needed" in str(refused.value)
    assert "flash_attn" not in str(refused.value)
    assert not (tmp_path / "store").exists()


def test_the_data_of_a_plan_must_be_there(bare, sums):
    with pytest.raises(FileNotFoundError, match=r"Load it once where there is a network.*'data_path'"):
        study.plan_cell("1.7B", "grpo", 0)
    with pytest.raises(FileNotFoundError, match=r"dapo: the folder 'rows' holds none"):
        study.plan_cell("1.7B", "grpo", 0, machine={"data_path": str(stand_in.ROWS.parent)})


def test_a_place_that_is_not_there_is_not_the_hub(bare):
    nowhere = study.settings("1.7B", "grpo", 0, machine={"data_path": "nowhere"})
    for refuse in (
        lambda: ready.to_train(study.SCALES["1.7B"], "grpo", None, nowhere),
        lambda: ready.to_evaluate(study.SCALES["1.7B"], None, None, nowhere),
    ):
        with pytest.raises(ready.NotReady, match="data_path 'nowhere' is neither a file nor a folder"):
            refuse()


@pytest.mark.parametrize("folder", ["1.7B/grpo/seed-0", "1.7B/grpo/first", "seed-0"])
def test_a_recorded_run_is_begun_by_the_study(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    values = recipe("1.7B-appendix") | {"record": folder, "processes": 1}
    values |= {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    with pytest.raises(study.RunError, match="the study begins a recorded run"):
        train.train(parse(values))
    assert list(tmp_path.iterdir()) == []


def test_the_matrix_of_a_full_run_stays_with_the_tiny_scales():
    assert not set(study.PROFILES["full"]["scales"]) & set(NAMES)
    assert study.family(NAMES) == "paper"
    assert len(arms.cells(NAMES, study.ARMS, [0])) == 3 * len(study.ARMS)
