"""The check for GPU owners, on a CPU and a tiny shape: what is measured, skipped, and said."""

import json
import math
import re

import pytest

from gdro import check_gpu, gpu_parts
from gdro.gpu_parts import Check
from gdro.study_arms import MAIN

TINY = Check("tiny", "cpu", prompts=4, rollouts=4, prompt_tokens=8, completion=6, steps=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("check")
    measured = gpu_parts.run_part("model", TINY, made)
    assert measured["planned"] == 4 * measured["parameters"]
    return made


def test_the_model_has_the_shape_and_a_word_for_every_token(folder):
    model, tokenizer = gpu_parts._loaded(TINY, folder)
    assert model.config.model_type == "qwen3"
    assert len(tokenizer) == model.config.vocab_size == 512
    assert tokenizer("w7 w511 w2")["input_ids"] == [7, 511, 2]
    assert tokenizer.decode([7, 511]) == "w7 w511"


# TRL calls the method under this name; transformers 5 has renamed it
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_(en|dis)able` is deprecated:FutureWarning")
@pytest.mark.parametrize("part", ["train/joint", "train/dapo-filter", "train/class-gdro", "lora/joint"])
def test_an_arm_trains_and_is_set_beside_the_plan(folder, part):
    measured = gpu_parts.run_part(part, TINY, folder)
    assert len(measured["losses"]) == 2
    assert measured["rollouts"] >= 16
    assert 0 < measured["tokens"] <= 6 * measured["rollouts"]
    assert measured["planned"] >= sum(
        measured["planned_parts"][name] for name in ("weights", "optimiser", "reference model")
    )
    assert (measured["planned_parts"]["reference model"] > 0) == part.startswith("train")
    assert math.isnan(measured["planned_seconds"])
    assert measured["peak"] is None


def test_sampling_is_timed(folder):
    measured = gpu_parts.run_part("generate", TINY, folder)
    assert 0 < measured["tokens"] <= 4 * 4 * 6
    assert measured["tokens_a_second"] > 0


def test_every_study_arm_is_a_part():
    assert {f"train/{arm}" for arm in MAIN} < set(check_gpu.PARTS)


def test_without_a_gpu_everything_is_skipped_by_name_and_nothing_ran(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check_gpu.torch.cuda, "is_available", lambda: False)
    output = tmp_path / "found.json"
    assert check_gpu.main(["--output", str(output)]) == 2
    kept = json.loads(output.read_text(encoding="utf-8"))
    assert [row["part"] for row in kept["parts"]] == list(check_gpu.PARTS)
    assert {row["verdict"] for row in kept["parts"]} == {"skipped: no CUDA device"}
    assert kept["check"]["shape"] == "1.7B"
    assert re.search(r"vllm/joint +skipped: no CUDA device", capsys.readouterr().out)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(check_gpu.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(check_gpu.torch.cuda, "is_available", lambda: True)
    reasons = {part: check_gpu.why_not(part, Check()) for part in check_gpu.PARTS}
    assert reasons["vllm/grpo"] == "package vllm is not installed"
    assert reasons["lora/joint"] == "package peft is not installed"
    assert reasons["flash-attention"] == "package flash_attn is not installed"
    assert reasons["train/joint"] is None


def test_a_part_is_a_process_of_its_own_and_a_failure_is_told_and_kept(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")  # no model
    row = check_gpu._one("generate", TINY, tmp_path, left=300)
    assert row["verdict"].startswith("failed: ")
    assert row["exit_code"] == 1
    assert any("Traceback" in line for line in row["log"])
    assert check_gpu.status([row, {"verdict": "fine"}]) == 1
    late = check_gpu._one("generate", TINY, tmp_path, left=0)
    assert late["verdict"] == "skipped: the time was over"
    assert check_gpu._one("generate", TINY, tmp_path / "none", 300)["verdict"].startswith(
        "skipped: there is no model"
    )
    table = check_gpu.table([row, late])
    assert table["part"].tolist() == ["generate", "generate"]
    assert table["tokens/s"].isna().all()


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="unknown shape '9B'"):
        Check("9B")
    with pytest.raises(ValueError, match="completion must be at least 2, got 1"):
        Check(completion=1)
    with pytest.raises(ValueError, match="unknown part 'train/gpro'"):
        check_gpu.run(TINY, ["train/gpro"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "9B"], "unknown shape '9B'; the known ones are '1.7B'"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--steps", "1"], "steps must be at least 2, got 1"),
        (["--only", "generat"], "unknown part 'generat'"),
        (["--part", "generat", "."], "unknown part 'generat'"),
        (["--minutes", "0"], "minutes must be above 0, got 0.0"),
        (["--minutes", "-5"], "minutes must be above 0, got -5.0"),
        (["--minutes", "nan"], "minutes must be finite, got nan"),
        (["--output", "missing/found.json"], "output 'missing/found.json' cannot be written (No such file"),
        (["--output", "."], "output '.' cannot be written (it is a folder)"),
    ],
)
def test_a_mistake_of_the_user_is_one_line_before_anything_runs(
    tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_gpu, "_one", None)
    with pytest.raises(SystemExit) as ended:
        check_gpu.main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_no_file_is_told_before_anything_runs(tmp_path, monkeypatch):
    def full(**options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(check_gpu.tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match=r"cannot be written \(Read-only file system\): name a file"):
        check_gpu.run(TINY, ["model"], output=tmp_path / "found.json")


def test_what_needs_the_model_brings_it(tmp_path):
    asked = check_gpu.asked(["generate", "train/grpo", "generate"], 1.0, tmp_path / "found.json")
    assert asked == ["model", "generate", "train/grpo"]
    assert check_gpu.asked(["model"], 1.0, tmp_path / "found.json") == ["model"]
