"""Train at the paper's scale: ``python -m gdro.train --config RECIPE [--dry-run] [key=value ...]``.

RECIPE is a file, or the name of one in ``gdro/recipes``, such as 4B-appendix; see `gdro.recipe`. One process
trains here; several are started (by ``accelerate launch`` with TRL's configuration where the model is
sharded) and their log is followed. ``--dry-run`` builds and checks everything, prints what the run needs, and
trains nothing.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import trl
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, record
from transformers import AutoTokenizer, TrainerCallback
from trl import get_peft_config

from gdro import benchmarks, estimate, planning, runs
from gdro.checkpoints import latest_complete
from gdro.progress import Progress, no_bars
from gdro.recipe import REWARDS, Settings, overridden, parse, recipe
from gdro.rows import fixed_bins, prompt_numbers
from gdro.run_writer import RunWriter, locked
from gdro.runs import RunError
from gdro.start import with_groups
from gdro.training import make_trainer, record_training


class TrainingStopped(RuntimeError):
    """The processes of a run ended before the run did."""


class FirstErrors(ErrorHandler):
    """Tells what started the processes of the error in this one, which is its last word where it came first.

    That another process is gone is no error of this one, though it may be seen here before it is seen there.
    Told by the words of gloo, which processes on the CPU talk by; those of NCCL are kept like any error.
    """

    def record_exception(self, e):
        """Keep ``e`` for the starter."""
        if not ("gloo" in str(e) and "by peer" in str(e)):
            super().record_exception(e)


def training_data(run):
    """The prompts of a run."""
    data = benchmarks.load(run.task, run.data_path, style=run.style, verify=run.verify)
    return with_groups(data, run.groups)


def train(settings: Settings, progress: Progress | None = None) -> Path:
    """Train in this process, alone or as one of several, and return the folder of the trained model.

    That is ``output_dir/model``; an output folder that holds a complete checkpoint is refused unless
    ``resume`` is set, and one that another run is writing in any case. With ``record`` the run of the study
    in that folder is recorded, gone on with where it was interrupted, and its model kept there; ``progress``
    shows how far it is.
    """
    run, args = settings.run, settings.trainer
    if run.record is not None:
        return _recorded(settings, progress)
    # one process of the run holds the folder for all of them
    with locked(args.output_dir) if args.should_save else nullcontext(lambda: None) as check_held:
        newest = latest_complete(args.output_dir)
        if newest is not None and not run.resume:
            raise ValueError(
                f"{args.output_dir!r} holds {Path(newest).name}: pass resume=true to go on from it, or "
                "another output_dir"
            )
        trainer = _trainer(settings)
        trainer.add_callback(_Held(check_held))
        trainer.train(resume_from_checkpoint=newest)
        check_held()
        folder = Path(args.output_dir) / "model"
        trainer.save_model(str(folder))
    return folder


class _Held(TrainerCallback):
    """Ends a training before it saves into a folder that is no longer the one that it holds."""

    def __init__(self, check_held):
        self.check_held = check_held

    def on_step_end(self, args, state, control, **kwargs):
        """Look where a checkpoint follows."""
        if control.should_save:
            self.check_held()

    on_epoch_end = on_step_end


def _trainer(settings):
    run, args, model = settings.run, settings.trainer, settings.model
    tokenizer = AutoTokenizer.from_pretrained(
        model.model_name_or_path,
        revision=model.model_revision,
        padding_side="left",
        trust_remote_code=args.trust_remote_code,
    )
    return make_trainer(
        model.model_name_or_path,
        REWARDS[run.reward],
        args,
        training_data(run),
        tokenizer,
        _budget(settings),
        peft_config=get_peft_config(model),
    )


def _budget(settings):
    """Rollouts that the run is held to instead of its steps, or None."""
    run = settings.run
    return run.generations * run.prompts * settings.trainer.num_generations if run.trainer != "gdro" else None


def _recorded(settings, progress):
    run, args = settings.run, settings.trainer
    folder = Path(run.record)
    key = runs.key_of(folder)
    store = folder.parent.parent.parent
    manifest = None if key is None else runs.read_manifest(store, key)
    if key is None or manifest is None or Path(args.output_dir) != folder / "checkpoints":
        raise RunError(
            f"record={run.record!r} with output_dir={args.output_dir!r}: the study begins a recorded run and "
            "keeps its checkpoints inside; train it as a cell of the study"
        )
    open_run: AbstractContextManager = nullcontext()
    if args.process_index == 0:
        open_run = RunWriter.open(store, key, manifest["settings"])
        progress = progress or Progress(f"train {key}", args.max_steps)
    with no_bars(), open_run as writer:
        record_training(
            writer, folder, lambda _: _trainer(settings), args.max_steps, _budget(settings), progress
        )
    return folder / "model"


def command(arguments, run) -> list[str]:
    """What starts the run's processes on this machine, each with this module's ``arguments``."""
    if run.sharding == "none":
        starter = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(run.processes)]
    else:
        config = Path(trl.__file__).with_name("accelerate_configs") / f"{run.sharding}.yaml"
        starter = ["accelerate.commands.launch", "--config_file", str(config)]
        starter += ["--num_processes", str(run.processes)]
    return [sys.executable, "-m", *starter, "-m", "gdro.train", *arguments]


def follow(started: list[str], output_dir, again: str = "resume=true") -> None:
    """Run a command and print its log as it comes; an interrupt here ends it as well.

    Raises `TrainingStopped` where it ends badly, killed or not, with what is left and how to go on.
    """
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        try:
            assert child.stdout is not None  # it is a pipe
            for line in child.stdout:
                print(line, end="", flush=True)
        except BaseException:  # an interrupt of a notebook reaches this process alone
            child.terminate()
            child.wait()
            raise
    if child.returncode:
        newest = latest_complete(output_dir)
        left = "no checkpoint is complete: start again"
        if newest is not None:
            left = f"{Path(newest).name} is complete: {again} goes on from it"
        raise TrainingStopped(f"the processes ended with code {child.returncode}, their log is above; {left}")


def checked(values: dict) -> Settings:
    """The settings of a recipe's fields, for `start`; refused here what the processes would refuse."""
    return parse(values, dry_run="WORLD_SIZE" not in os.environ and values.get("processes", 1) != 1)


def start(settings: Settings, config, changes=(), *, progress=None, again: str = "resume=true") -> None:
    """Train by ``settings``, which are those of the recipe ``config`` with ``changes``.

    In this process where it is one of those started, or the only one on a machine with one GPU or none; else
    in processes of their own, whose log is followed. Raises `TrainingStopped` where those end before the run.
    """
    # where several GPUs are seen, one process alone would spread itself over all of them
    alone = settings.trainer.use_cpu or torch.cuda.device_count() <= 1
    if "WORLD_SIZE" in os.environ or (settings.run.processes == 1 and alone):
        record(train, FirstErrors())(settings, progress)
    else:
        follow(command(["--config", str(config), *changes], settings.run), settings.trainer.output_dir, again)


def dry_run(values: dict) -> str:
    """Build and check everything but the weights, and return the plan as text; nothing is trained. What is
    read, from the hub or the disk, is announced on stderr.

    Raises what the data, the settings or the controller refuse, and for a grader that does not tell a right
    answer of the data from a wrong one.
    """
    settings = parse(values, dry_run=True)
    run, args = settings.run, settings.trainer
    _announce(f"reading and checking the prompts of {run.task} from {run.data_path or 'the hub or a cache'}")
    data = training_data(run)
    if len(data) < run.prompts:
        raise ValueError(f"{run.task} has {len(data)} prompts, a generation takes {run.prompts}: lower it")
    bins = None if args.bin_column is None else fixed_bins(data, args.bin_column, prompt_numbers(data))
    args.build_controller(len(data), bins=bins)
    right, wrong = REWARDS[run.reward](
        completions=[rf"\boxed{{{data[0]['answer']}}}", "no box"], answer=[data[0]["answer"]] * 2
    )
    if (right, wrong) != (1.0, 0.0):
        raise ValueError(
            f"the grader {run.reward!r} gave {right} and {wrong} for a right and a wrong answer of "
            f"{run.task}: take the other one"
        )
    _announce(f"counting the parameters of {settings.model.model_name_or_path}, without its weights")
    texts = [p if isinstance(p, str) else p[-1]["content"] for p in data["prompt"]]
    shape = estimate.model_shape(settings.model)
    work = estimate.workload(settings, sum(map(len, texts)) / len(texts) / 3)
    missing = [] if not args.use_vllm or importlib.util.find_spec("vllm") else ["vllm is not installed here"]
    made = planning.plan(shape, work, planning.DEVICES[run.device])
    head = f"{settings.model.model_name_or_path} on {data.info.description}"
    return "\n".join([head, *missing, planning.describe(made, shape, work, run.device)])


def _announce(text):
    print(f"{text} ...", file=sys.stderr, flush=True)


def main(arguments=None) -> None:
    """The command line; see the module. What is wrong with the recipe, or found so by a dry run, ends it with
    one line and exit status 2."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m gdro.train", description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, metavar="RECIPE", help="a YAML file, or a recipe's name")
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, print the plan, train nothing"
    )
    parser.add_argument(
        "changes", nargs="*", metavar="key=value", help="fields that differ from the recipe's"
    )
    given = parser.parse_intermixed_args(arguments)
    try:
        values = overridden(recipe(given.config), given.changes)
        if given.dry_run:
            print(dry_run(values))
            return
        settings = checked(values)
    except (OSError, TypeError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {' '.join(str(error).split())}\n")
    start(settings, given.config, given.changes)


if __name__ == "__main__":
    main()
