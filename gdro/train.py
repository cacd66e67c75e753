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
from pathlib import Path

import torch
import trl
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen3Config
from trl import get_peft_config

from gdro import benchmarks, planning
from gdro.checkpoints import latest_complete
from gdro.recipe import REWARDS, Settings, overridden, parse, recipe
from gdro.trainer import GDROTrainer


class TrainingStopped(RuntimeError):
    """The processes of a run ended before the run did."""


def training_data(run):
    """The prompts of a run."""
    return benchmarks.load(run.task, run.data_path, style=run.style, verify=run.verify)


def train(settings: Settings) -> Path:
    """Train in this process and return the folder of the trained model, ``output_dir/model``.

    An output folder that holds a complete checkpoint is refused unless ``resume`` is set.
    """
    run, args, model = settings.run, settings.trainer, settings.model
    newest = latest_complete(args.output_dir)
    if newest is not None and not run.resume:
        raise ValueError(
            f"{args.output_dir!r} holds {Path(newest).name}: pass resume=true to go on from it, or another "
            "output_dir"
        )
    trainer = GDROTrainer(
        model.model_name_or_path,
        REWARDS[run.reward],
        args,
        training_data(run),
        processing_class=AutoTokenizer.from_pretrained(
            model.model_name_or_path, revision=model.model_revision, padding_side="left"
        ),
        peft_config=get_peft_config(model),
    )
    trainer.train(resume_from_checkpoint=newest)
    folder = Path(args.output_dir) / "model"
    trainer.save_model(str(folder))
    return folder


def command(arguments, run) -> list[str]:
    """What starts the run's processes on this machine, each with this module's ``arguments``."""
    if run.sharding == "none":
        starter = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(run.processes)]
    else:
        config = Path(trl.__file__).with_name("accelerate_configs") / f"{run.sharding}.yaml"
        starter = ["accelerate.commands.launch", "--config_file", str(config)]
        starter += ["--num_processes", str(run.processes)]
    return [sys.executable, "-m", *starter, "-m", "gdro.train", *arguments]


def follow(started: list[str], output_dir) -> None:
    """Run a command and print its log as it comes.

    Raises `TrainingStopped` where it ends badly, killed or not, with what is left and how to go on.
    """
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        for line in child.stdout:
            print(line, end="", flush=True)
    if child.returncode:
        newest = latest_complete(output_dir)
        left = "no checkpoint is complete: start again"
        if newest is not None:
            left = f"{Path(newest).name} is complete: resume=true goes on from it"
        raise TrainingStopped(f"the processes ended with code {child.returncode}, their log is above; {left}")


def model_shape(model) -> planning.ModelShape:
    """Counts of the model (and of its adapter) from its configuration, built without memory for weights."""
    known = planning.QWEN3.get(model.model_name_or_path)
    if known is not None:
        config = Qwen3Config(**known)
    else:
        config = AutoConfig.from_pretrained(model.model_name_or_path, revision=model.model_revision)
    peft = get_peft_config(model)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
        total = empty.num_parameters()
        if peft is not None:
            from peft import get_peft_model  # an extra that only this kind of recipe needs

            empty = get_peft_model(empty, peft)
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return planning.ModelShape(
        parameters=total,
        trainable=sum(p.numel() for p in empty.parameters() if p.requires_grad),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        attention=heads * width,
        cached=config.num_key_value_heads * width,
        vocabulary=config.vocab_size,
    )


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
    args.build_controller(len(data))
    right, wrong = REWARDS[run.reward](
        completions=[rf"\boxed{{{data[0]['answer']}}}", "no box"], answer=[data[0]["answer"]] * 2
    )
    if (right, wrong) != (1.0, 0.0):
        raise ValueError(
            f"the grader {run.reward!r} gave {right} and {wrong} for a right and a wrong answer of "
            f"{run.task}: take the other one"
        )
    _announce(f"counting the parameters of {settings.model.model_name_or_path}, without its weights")
    shape = model_shape(settings.model)
    work = _workload(values, settings, data)
    missing = [] if not args.use_vllm or importlib.util.find_spec("vllm") else ["vllm is not installed here"]
    made = planning.plan(shape, work, planning.DEVICES[run.device])
    head = f"{settings.model.model_name_or_path} on {data.info.description}"
    return "\n".join([head, *missing, planning.describe(made, shape, work, run.device)])


def _announce(text):
    print(f"{text} ...", file=sys.stderr, flush=True)


def _workload(values, settings, data):
    run, args, model = settings.run, settings.trainer, settings.model
    texts = (p if isinstance(p, str) else p[-1]["content"] for p in data["prompt"])
    colocated = args.use_vllm and args.vllm_mode == "colocate"
    half = model.dtype in ("bfloat16", "float16")
    return planning.Workload(
        prompts=run.prompts,
        rollouts=args.num_generations,
        generations=run.generations,
        processes=run.processes,
        micro_rows=int(values.get("per_device_train_batch_size", 8)),
        prompt_tokens=sum(map(len, texts)) / len(data) / 3,
        max_completion=args.max_completion_length,
        mean_completion=min(run.mean_completion, args.max_completion_length),
        sharded=run.sharding != "none",
        weight_bytes=2 if half else 4,
        trained_bytes=2 if half and not model.use_peft else 4,
        reference=args.beta > 0 and not model.use_peft,
        old_pass=run.minibatches > 1,
        checkpointing=bool(args.gradient_checkpointing),
        engine_share=args.vllm_gpu_memory_utilization if colocated else 0.0,
        engine_sleeps=args.vllm_enable_sleep_mode,
    )


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
    started = "WORLD_SIZE" in os.environ
    try:
        values = overridden(recipe(given.config), given.changes)
        if given.dry_run:
            print(dry_run(values))
            return
        settings = parse(values, dry_run=not started and int(values.get("processes", 1)) > 1)
    except (OSError, TypeError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {' '.join(str(error).split())}\n")
    if started or settings.run.processes == 1:
        train(settings)
    else:
        follow(command(arguments, settings.run), settings.trainer.output_dir)


if __name__ == "__main__":
    main()
