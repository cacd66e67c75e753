"""Running one cell with torch: train with a record that survives interruption, evaluate a model folder."""

import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, set_seed

from gdro import engines
from gdro.checkpoints import STATE, latest_complete, read_state, refuse_damaged
from gdro.config import GDROConfig
from gdro.dapo_filter import FilteredGRPOTrainer
from gdro.evaluation import evaluate
from gdro.recorder import Recorder
from gdro.resume import named_if_not_written
from gdro.run_writer import remove_folder
from gdro.runs import RunError
from gdro.seals import file_hashes
from gdro.trainer import GDROTrainer

_SAFE = {"local_files_only": True, "trust_remote_code": False}
_WEIGHTS = {**_SAFE, "use_safetensors": True}


def run_training(writer, settings, arm, start, data, reward, progress) -> None:
    """Train one run to its end, from its newest complete checkpoint where there is one, and keep the model.

    ``writer`` an open `RunWriter`; ``settings`` fields of GDROConfig; ``arm`` the StudyArm; ``start`` the
    base model's folder; ``data`` the training prompts; ``reward`` the reward function. Afterwards the run is
    "trained": its record is whole, ``model/`` holds the model, its checkpoints are gone.
    """
    rows = settings["per_device_train_batch_size"] * settings["steps_per_generation"]
    budget = settings["max_steps"] // settings["steps_per_generation"] * rows
    if arm.trainer != "dapo-filter":
        budget = None

    def make(checkpoints):
        args = GDROConfig(output_dir=str(checkpoints), report_to="none", disable_tqdm=True, **settings)
        model, tokenizer = load(start)
        return make_trainer(model, reward, args, data, tokenizer, budget)

    record_training(writer, writer.folder, make, settings["max_steps"], budget, progress)


def make_trainer(model, reward, args, data, tokenizer, budget=None, **options):
    """A `GDROTrainer`, or with a ``budget`` of rollouts the arm dapo-filter's, which stops where it is
    spent.

    Where vLLM samples in the trainer's process, TRL lets it seed the process with the process's number alone,
    so that runs of every seed would draw alike; here the run's seed decides.
    """
    common = {"args": args, "train_dataset": data, "processing_class": tokenizer, **options}
    if budget is None:
        trainer = GDROTrainer(model, reward, **common)
    else:
        trainer = FilteredGRPOTrainer(model, reward, **common, rollout_budget=budget)
    if args.use_vllm and args.vllm_mode == "colocate":
        # the processes that share an engine must draw the same
        engine = trainer.accelerator.process_index // args.vllm_tensor_parallel_size
        set_seed(int(np.random.SeedSequence([args.seed, engine]).generate_state(1)[0]))
    return trainer


def record_training(writer, folder, make, max_steps, budget, progress) -> None:
    """Train the run in ``folder``, as `run_training` says, on one or several processes, each of which calls
    this.

    ``writer`` the open `RunWriter` on the main process, None on the others, where nothing is written but
    their part of the checkpoints; ``make(checkpoints)`` the trainer; ``budget`` of rollouts, None for a run
    of ``max_steps``; ``progress`` used on the main process.
    """
    checkpoints = Path(folder) / "checkpoints"
    newest = latest_complete(checkpoints)
    if writer is not None:
        dropped = writer.cut_back(_step(newest))
        if newest is not None or dropped:
            progress.say(
                f"going on from step {_step(newest)}, {dropped} recorded steps after it are made again"
            )
    if newest is None or not _complete(newest, max_steps, budget):
        trainer = make(checkpoints)
        trainer.remove_callback(PrinterCallback)
        recorder = Recorder(writer, trainer, progress) if writer is not None else None
        if recorder is not None:
            trainer.add_callback(recorder)
        trainer.train(resume_from_checkpoint=newest)
        if recorder is not None:
            recorder.flush()
        with _kept(Path(folder) / "model", writer is not None) as temporary:
            trainer.save_model(str(temporary))  # all processes, where the model is sharded
            trainer.accelerator.wait_for_everyone()
    elif writer is not None:
        refuse_damaged(newest)
        with _kept(Path(folder) / "model", True) as temporary:
            for part in load(newest):
                part.save_pretrained(temporary)
    if writer is not None:
        facts = {"threads": torch.get_num_threads(), "trained_steps": writer.last_step}
        facts["model_files"] = file_hashes(Path(folder) / "model")
        if torch.cuda.is_available():
            facts["gpus"] = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
        writer.trained(**facts)
        remove_checkpoints(writer)
        progress.close(f"{writer.last_row['rollouts_total']} rollouts")


def remove_checkpoints(writer) -> None:
    """Remove what a trained run no longer needs, also after a kill in the middle of this."""
    remove_folder(writer.folder / "checkpoints")


def evaluate_folder(folder, data, reward, plan, progress, before, engine=None):
    """Evaluate the model in ``folder`` as ``plan`` says; ``before`` prompts were done already.

    ``engine`` the name and options of `gdro.engines.load`, and the rows of a batch; None for transformers, in
    float32 on the CPU.
    """
    name, options, rows = engine or ("transformers", {"dtype": torch.float32, **_WEIGHTS}, None)
    tokenizer = AutoTokenizer.from_pretrained(folder, **_SAFE)
    with engines.load(name, folder, **options) as loaded:
        return evaluate(
            loaded,
            tokenizer,
            data,
            reward,
            plan["samples"],
            max_new_tokens=plan["max_new_tokens"],
            temperature=plan["temperature"],
            top_p=plan.get("top_p", 1.0),
            top_k=plan.get("top_k", 0),
            seed=plan["seed"],
            batch_size=rows,
            progress=lambda done, total: progress.update(before + done),
        )


def load(folder):
    """Model, in float32, and tokenizer of a Hugging Face folder; nothing is fetched, no code of the folder
    runs, and weights are read from safetensors alone, never from a pickle.

    ``RunError`` where the weights are not there or not whole.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **_WEIGHTS)
        return model, AutoTokenizer.from_pretrained(folder, **_SAFE)
    except (OSError, ValueError, SafetensorError) as error:
        raise RunError(
            f"the model folder {Path(folder).name} cannot be loaded ({error}): it needs config.json, a "
            "tokenizer and whole model.safetensors, and no code of its own"
        ) from error


def _complete(checkpoint, max_steps, budget) -> bool:
    """Whether the checkpoint is the end of its run: its last step, or its budget of rollouts."""
    if _step(checkpoint) >= max_steps:
        return True
    return budget is not None and read_state(checkpoint, STATE)["total_rollouts"] >= budget


def _step(checkpoint) -> int:
    return 0 if checkpoint is None else int(Path(checkpoint).name.removeprefix("checkpoint-"))


@contextmanager
def _kept(folder, here):
    """Where to save a model: another name, which is renamed at the end, so that ``folder`` is whole or not
    there. Files are touched where ``here`` is true."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    with named_if_not_written(folder):
        if here:
            remove_folder(temporary)
        yield temporary
        if here:
            (temporary / "training_args.bin").unlink(missing_ok=True)  # a pickle that names folders
            remove_folder(folder)
            os.replace(temporary, folder)
