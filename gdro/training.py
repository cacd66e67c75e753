"""Running one cell with torch: train with a record that survives interruption, evaluate a model folder."""

import os
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

from gdro.checkpoints import latest_complete
from gdro.config import GDROConfig
from gdro.dapo_filter import FilteredGRPOTrainer
from gdro.evaluation import evaluate
from gdro.recorder import Recorder
from gdro.trainer import GDROTrainer


def run_training(writer, settings, arm, start, data, reward, progress) -> None:
    """Train one run to its end, from its newest complete checkpoint where there is one, and keep the model.

    ``writer`` an open `RunWriter`; ``settings`` fields of GDROConfig; ``arm`` the StudyArm; ``start`` the
    base model's folder; ``data`` the training prompts; ``reward`` the reward function. Afterwards the run is
    "trained": its record is whole, ``model/`` holds the model, its checkpoints are gone.
    """
    checkpoints = writer.folder / "checkpoints"
    budget = settings["max_steps"] // settings["steps_per_generation"] * _rows(settings)
    newest = latest_complete(checkpoints)
    dropped = writer.cut_back(_step(newest))
    if newest is not None or dropped:
        progress.say(f"going on from step {_step(newest)}, {dropped} recorded steps after it are made again")
    if newest is None or not _complete(writer, settings, arm, budget):
        trainer = _trainer(settings, arm, start, data, reward, checkpoints, budget)
        recorder = Recorder(writer, trainer, progress)
        trainer.add_callback(recorder)
        trainer.train(resume_from_checkpoint=newest)
        recorder.flush()
        model, tokenizer = trainer.model, trainer.processing_class
    else:
        model, tokenizer = load(newest)
    _keep_model(model, tokenizer, writer.folder / "model")
    writer.trained(threads=torch.get_num_threads(), trained_steps=writer.last_step)
    shutil.rmtree(checkpoints, ignore_errors=True)
    progress.close(f"{writer.last_row['rollouts_total']} rollouts")


def evaluate_folder(folder, data, reward, plan, progress, before):
    """Evaluate the model in ``folder`` as ``plan`` says; ``before`` prompts were done already."""
    model, tokenizer = load(folder)
    return evaluate(
        model,
        tokenizer,
        data,
        reward,
        plan["samples"],
        max_new_tokens=plan["max_new_tokens"],
        temperature=plan["temperature"],
        seed=plan["seed"],
        progress=lambda done, total: progress.update(before + done),
    )


def load(folder):
    """Model, in float32, and tokenizer of a Hugging Face folder; nothing is fetched."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _trainer(settings, arm, start, data, reward, checkpoints, budget):
    args = GDROConfig(output_dir=str(checkpoints), report_to="none", disable_tqdm=True, **settings)
    model, tokenizer = load(start)
    common = {"args": args, "train_dataset": data, "processing_class": tokenizer}
    if arm.trainer == "dapo-filter":
        trainer = FilteredGRPOTrainer(model, reward, **common, rollout_budget=budget)
    else:
        trainer = GDROTrainer(model, reward, **common)
    trainer.remove_callback(PrinterCallback)
    return trainer


def _rows(settings):
    return settings["per_device_train_batch_size"] * settings["steps_per_generation"]


def _complete(writer, settings, arm, budget):
    """Whether the record reaches the end of the run: its last step, or its budget of rollouts."""
    if writer.last_step >= settings["max_steps"]:
        return True
    return arm.trainer == "dapo-filter" and writer.last_row.get("rollouts_total", 0) >= budget


def _step(checkpoint) -> int:
    return 0 if checkpoint is None else int(Path(checkpoint).name.removeprefix("checkpoint-"))


def _keep_model(model, tokenizer, folder):
    """Save under another name and rename, so that ``model/`` is whole or not there."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)
