"""What the recipes need before anything is spent: each one's workload, and all plans in one table."""

import importlib.util

import pandas as pd
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config
from trl import get_peft_config

from gdro import planning
from gdro.recipe import RECIPES, Settings, overridden, parse, recipe

DAPO_PROMPT_TOKENS = 117  # a third of the mean length of its 14,485 English rows, with the suffix
COLUMNS = (
    *("recipe", "GPUs", "peak GB", "fits", "largest part", "engine GB", "million tokens"),
    *("s a generation", "GPU hours", "generating", "training", "log-probabilities", "note"),
)


def names() -> list[str]:
    """Recipes of the package that name a model, by scale."""
    return sorted(path.stem for path in RECIPES.glob("*B-*.yaml"))


def model_shape(model) -> planning.ModelShape:
    """Counts of the model (and of its adapter) from its configuration, built without memory for weights."""
    known = planning.QWEN3.get(model.model_name_or_path)
    if known is not None:
        config = Qwen3Config(**known)
    else:
        config = AutoConfig.from_pretrained(
            model.model_name_or_path, revision=model.model_revision, trust_remote_code=False
        )
    peft = get_peft_config(model)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        total = empty.num_parameters()
        if peft is not None:
            from peft import get_peft_model  # an extra that only this kind of recipe needs

            empty = get_peft_model(empty, peft)
    trainable = sum(p.numel() for p in empty.parameters() if p.requires_grad)
    return planning.shape_of(config, total, trainable)


def workload(settings: Settings, prompt_tokens: float) -> planning.Workload:
    """How a recipe lays out its run, for prompts of ``prompt_tokens`` on average.

    ``settings`` of ``parse(values, dry_run=True)``, in which one process holds the whole batch.
    """
    run, args, model = settings.run, settings.trainer, settings.model
    colocated = args.use_vllm and args.vllm_mode == "colocate"
    half = model.dtype in ("bfloat16", "float16")
    return planning.Workload(
        prompts=run.prompts,
        rollouts=args.num_generations,
        generations=run.generations,
        processes=run.processes,
        micro_rows=args.per_device_train_batch_size // run.processes,
        prompt_tokens=prompt_tokens,
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


def planned(name: str, changes=(), prompt_tokens: float = DAPO_PROMPT_TOKENS):
    """(`planning.Plan`, its shape, its workload, its device) of a recipe with "key=value" ``changes``.

    Nothing is loaded or fetched. What the recipe's settings refuse is raised; a LoRA recipe needs the extra
    ``lora``.
    """
    settings = parse(overridden(recipe(name), changes), dry_run=True)
    shape, work = model_shape(settings.model), workload(settings, prompt_tokens)
    device = settings.run.device
    return planning.plan(shape, work, planning.DEVICES[device]), shape, work, device


def table(recipes=None, changes=(), prompt_tokens: float = DAPO_PROMPT_TOKENS) -> pd.DataFrame:
    """The plan of each recipe, a row each.

    Args: ``recipes`` names, None for all; ``changes`` as `planned`, the same for every recipe. Columns (see
    `planning`): memory in GB a GPU at the peak, whether it fits with a tenth left free, the largest part of
    it but the generation engine's, and the engine's; tokens generated in the run; time of one generation with
    its steps; GPU hours of the run, and the shares of generating, training, and of the old and reference
    log-probabilities. A recipe whose extra is not installed has a note instead of numbers.
    """
    rows = []
    for name in names() if recipes is None else recipes:
        if recipe(name).get("use_peft") and importlib.util.find_spec("peft") is None:
            rows.append({"recipe": name, "note": "needs the extra lora: pip install -e '.[lora]'"})
            continue
        made, _, work, device = planned(name, changes, prompt_tokens)
        total, scoring = sum(made.seconds.values()), ("old log-probabilities", "reference log-probabilities")
        rows.append(
            {
                "recipe": name,
                "GPUs": f"{work.processes} x {device}",
                "peak GB": made.peak / 1e9,
                "fits": bool(made.peak < 0.9 * planning.DEVICES[device].memory),
                "largest part": max(made.memory, key=made.memory.get),
                "engine GB": made.engine / 1e9,
                "million tokens": made.tokens / 1e6,
                "s a generation": total,
                "GPU hours": made.gpu_hours,
                "generating": made.seconds["generation"] / total,
                "training": made.seconds["training"] / total,
                "log-probabilities": sum(made.seconds[part] for part in scoring) / total,
                "note": "",
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))
