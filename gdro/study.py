"""The study: train and evaluate one cell of the matrix, read what is there, and keep the figures made of it.

Everything is checked before anything is computed, and a cell that is refused leaves the store as it was.
"""

from pathlib import Path

import pandas as pd

from gdro import evidence, launch, paper_scale, ready, runs, tasks
from gdro.arms import ARMS, PROFILES, SCALES, Scale, cells, known, settings
from gdro.gallery import save_figure, save_table, show
from gdro.progress import Progress, calm, no_bars
from gdro.provenance import surroundings, weights_hash
from gdro.run_writer import RunWriter, plain, refuse_other_settings
from gdro.runs import RunError, RunKey, load_runs
from gdro.seals import file_hashes
from gdro.start import base_model, grader, held_out, repository, resolve, training_data
from gdro.study_arms import StudyArm

__all__ = [
    "ARMS",
    "PROFILES",
    "SCALES",
    "RunError",
    "RunKey",
    "Scale",
    "StudyArm",
    "adversary_pairs",
    "cells",
    "evaluate_cell",
    "family",
    "find_runs",
    "job",
    "joined",
    "kept_runs",
    "load_runs",
    "outdated",
    "plan_cell",
    "reported",
    "repository",
    "resolve",
    "save_figure",
    "save_table",
    "settings",
    "show",
    "status",
    "train_cell",
]


def status(store, scale: str, arm: str, seed: int) -> str:
    """How far a cell is: "absent", "started", "trained" or "finished"; unknown names are refused."""
    cells([scale], [arm], [seed])
    return runs.stage(resolve(store), RunKey(scale, arm, seed))


@calm()
def train_cell(
    scale, arm, seed, store="data/runs", cycles=None, progress=None, model=None, machine=None
) -> Path:
    """Train one cell into the store and return the run's folder; an interrupted run goes on from its last
    checkpoint.

    Args: ``cycles`` a shorter or longer run than the scale's (it is then another run: give it another store);
    ``progress`` a mode of `gdro.progress`; ``model`` another folder to start from than the scale's;
    ``machine`` as `settings`. A cell that is trained already is left alone. At a scale with a recipe the
    training goes through `gdro.train`, in processes of its own where there are several, whose log is shown.

    Unknown names, a run made with other settings, data or model, one that another process is writing, and one
    half written raise, naming the value and the remedy; `gdro.ready.NotReady` where the machine lacks
    something; `gdro.train.TrainingStopped` where the run's processes ended before it.
    """
    chosen = settings(scale, arm, seed, cycles, machine)
    store, key, what = resolve(store), RunKey(scale, arm, seed), SCALES[scale]
    if what.recipe is not None:
        return launch.train(store, key, what, chosen, model, progress)
    start = base_model(what, model, chosen)
    data = training_data(what, arm, chosen)
    identity = {
        **chosen,
        **{
            "trainer": ARMS[arm].trainer,
            "data_fingerprint": tasks.fingerprint(data),
            "model_fingerprint": weights_hash(start),
        },
    }
    if runs.stage(store, key) == "finished":
        refuse_other_settings(key, runs.existing_manifest(store, key), identity)
        return key.folder(store)
    from gdro import training  # torch and TRL, only once there is something to train

    with (
        no_bars(),
        RunWriter.open(store, key, identity, described=surroundings(identity["data_fingerprint"])) as writer,
    ):
        if writer.manifest["stage"] == "trained":
            training.remove_checkpoints(writer)
        else:
            shown = Progress(f"train {key}", chosen["max_steps"], progress)
            training.run_training(writer, chosen, ARMS[arm], start, data, grader(what), shown)
    return key.folder(store)


def plan_cell(scale, arm, seed, cycles=None, machine=None) -> str:
    """What training a cell needs, as text, with every check of the trainer's dry run; nothing is written.

    At the paper's scales: memory per GPU, tokens, GPU hours and what they rest on (`gdro.planning`), from the
    training set and the model's shape. Raises as `train_cell` for names, settings and data.
    """
    chosen, what = settings(scale, arm, seed, cycles, machine), SCALES[scale]
    if what.recipe is None:
        rows = what.prompts * what.rollouts
        steps = chosen["max_steps"]
        return f"{scale}: {rows} rollouts and two optimiser steps a cycle, {steps} steps, on the CPU"
    return launch.plan(what, chosen)


def job(scale: str, step: str, machine: dict | None = None) -> dict:
    """What a cluster gives the job that trains ("train") or evaluates ("evaluate") a cell of this scale.

    gpu, cpus, mem_mb and runtime (minutes), from the scale and the processes of its recipe; an evaluation is
    one process, with a GPU for each shard of its engine.

    >>> job("tiny-s", "train"), job("1.7B", "evaluate")["gpu"]
    ({'gpu': 0, 'cpus': 1, 'mem_mb': 4000, 'runtime': 240}, 1)
    """
    known("step", step, ("train", "evaluate"))
    what = known("scale", scale, SCALES)
    chosen = settings(scale, next(iter(ARMS)), 0, machine=machine)
    processes = chosen.get("processes", 1)
    if step == "evaluate":
        processes = paper_scale.evaluating(chosen).get("vllm_tensor_parallel_size", 1)
    return {
        "gpu": 0 if chosen.get("use_cpu") else processes,
        "cpus": what.cores * processes,
        "mem_mb": 1000 * what.memory * processes,
        "runtime": 60 * what.hours,
    }


@calm()
def evaluate_cell(scale, arm, seed, store="data/runs", suites=None, progress=None, model=None, machine=None):
    """Evaluate the base and the trained model of a cell on the held-out suites, finish the run, and return
    its evaluations.

    Step 0 is the base model; it is the same for every arm of a scale and seed, so a finished run beside this
    one lends its own. Args: ``suites`` names, None for all; ``progress``, ``model`` and ``machine`` as
    `train_cell`. A finished run is read, not evaluated again. Raises as `train_cell`, and for a run that is
    not trained to its end.
    """
    chosen = settings(scale, arm, seed, machine=machine)
    store, key, what = resolve(store), RunKey(scale, arm, seed), SCALES[scale]
    stage = runs.stage(store, key)
    if what.recipe is None:
        start, data = base_model(what, model, chosen), held_out(what, suites, chosen)
    if stage == "finished":
        return runs.read_run(store, key).evaluations
    if stage != "trained":
        raise RunError(
            f"run {key} is {stage}, and only a trained run can be evaluated: train it with "
            f"notebooks/04_train.ipynb, or `{_command(scale, [arm], [seed])}`"
        )
    if what.recipe is not None:
        start, data = ready.to_evaluate(what, suites, model, chosen)
    from gdro.training import evaluate_folder

    plan = {
        **{"samples": what.eval_samples, "max_new_tokens": what.eval_completion},
        **what.decoding,
        **{
            "seed": key.seed,
            "suites": list(dict.fromkeys(data["suite"])),
            "data_fingerprint": tasks.fingerprint(data),
        },
    }
    engine = None
    if what.recipe is not None:
        engine = paper_scale.engine(chosen)
        plan["engine"] = engine[0]
    manifest = runs.existing_manifest(store, key)
    with no_bars(), RunWriter.open(store, key, manifest["settings"]) as writer:
        _check_model(key, writer.folder / "model", manifest)
        shown = Progress(f"evaluate {key}", 2 * len(data), progress, unit="prompt")
        base = _lent_base(store, key, manifest["settings"]["model_fingerprint"], plan)
        if base is None:
            if what.recipe is None:  # those with one name a revision of the hub
                started = manifest["settings"] | {"model_fingerprint": weights_hash(start)}
                refuse_other_settings(key, manifest, started)
            base = evaluate_folder(start, data, grader(what), plan, shown, 0, engine).assign(step=0)
        trained = writer.folder / "model"
        final = evaluate_folder(trained, data, grader(what), plan, shown, len(data), engine)
        final = final.assign(step=writer.last_step)
        both = pd.concat([base, final], ignore_index=True)[list(runs.REQUIRED["evaluations"])]
        writer.finish(both, evaluation=plan)
        shown.close(f"mean@{what.eval_samples} {_mean(base):.3f} -> {_mean(final):.3f}")
    return both


def adversary_pairs(arms) -> list[tuple[str, str, str]]:
    """Figure name, prompt arm and rollout arm of each pair of adversaries among ``arms``; the paper's pair
    comes first.

    Figure 1 shows one pair. Where only the pair of section 4 was run, it takes the name of the paper's
    figure.

    >>> adversary_pairs(["grpo", "prompt-gdro-error", "rollout-gdro-variance"])
    [('fig01', 'prompt-gdro-error', 'rollout-gdro-variance')]
    """
    pairs = [("prompt-gdro", "rollout-gdro"), ("prompt-gdro-error", "rollout-gdro-variance")]
    there = [pair for pair in pairs if set(pair) <= set(arms)]
    return [(name, *pair) for name, pair in zip(("fig01", "fig01_argued"), there, strict=False)]


def family(scales) -> str:
    """The figures' subfolder of these scales, which must be of one family."""
    found = sorted({known("scale", scale, SCALES).family for scale in scales})
    if len(found) != 1:
        raise ValueError(
            f"scales {', '.join(scales)} are of the families {', '.join(found)}: make figures of one at a "
            "time"
        )
    return found[0]


def reported(name: str) -> pd.DataFrame:
    """What the paper reports: "table1" or "other"; every row says "reported" in its column ``status``."""
    folder = tasks.data_root() / "reported"
    known("table of reported values", name, [path.stem for path in sorted(folder.glob("*.csv"))])
    return pd.read_csv(folder / f"{name}.csv")


def joined(frames) -> pd.DataFrame:
    """Several frames of the same columns under one another."""
    return pd.concat(frames, ignore_index=True)


def find_runs(store, scales, arms, seeds):
    """Frames of those cells that are finished, and for those that are not the commands that make them.

    Returns (`runs.Frames`, list of commands, one a scale). Unknown names and half-written finished runs
    raise.
    """
    wanted = cells(scales, arms, seeds)
    folder = resolve(store)
    there = [c for c in wanted if runs.stage(folder, RunKey(*c)) == "finished"]
    missing = [c for c in wanted if c not in there]
    commands = []
    for scale in dict.fromkeys(c[0] for c in missing):
        some, numbers = (list(dict.fromkeys(c[i] for c in missing if c[0] == scale)) for i in (1, 2))
        commands.append(_command(scale, some, numbers))
    return runs.load_keys(folder, [RunKey(*c) for c in there]), commands


def kept_runs(place) -> pd.DataFrame:
    """The held-out prompts of runs, as `gdro.evidence.kept` gives them: of every finished run where ``place``
    is a run store, of those that were kept where it is a parquet file."""
    path = resolve(place)
    if not path.is_dir():
        return pd.read_parquet(path)
    return evidence.kept(runs.load_keys(path, runs.list_runs(path)))


def outdated(store, scale: str, arm: str, seed: int) -> list[str]:
    """Settings of a run in the store that differ from those of the study now, by name."""
    manifest = runs.read_manifest(resolve(store), RunKey(scale, arm, seed))
    now = plain(settings(scale, arm, seed))
    if SCALES[scale].recipe is not None:
        now = paper_scale.compared(now)
    return sorted(k for k in now if manifest and manifest["settings"].get(k) != now[k])


def _command(scale, arms, seeds):
    """What makes these cells on one machine, with cores for the largest of its jobs, for two of them where
    those are small."""
    cores = max(2, *(job(scale, step)["cpus"] for step in ("train", "evaluate")))
    options = f"scales='[{scale}]' arms='[{','.join(arms)}]' seeds='{sorted(seeds)}'".replace(", ", ",")
    return f"snakemake -s notebooks/Snakefile -c{cores} all --config {options}"


def _mean(evaluations):
    return float((evaluations["correct"] / evaluations["k"]).mean())


def _lent_base(store, key, model_fingerprint, plan):
    """Step 0 of a finished run of this scale and seed, evaluated alike from the same model, or None."""
    for other in runs.list_runs(store):
        if (other.scale, other.seed) != (key.scale, key.seed) or other == key:
            continue
        manifest = runs.existing_manifest(store, other)
        same_model = manifest["settings"].get("model_fingerprint") == model_fingerprint
        if same_model and manifest.get("evaluation") == plan:
            rows = runs.read_run(store, other).evaluations
            return rows[rows["step"] == 0]
    return None


def _check_model(key, folder, manifest):
    """Refuse a trained model that is gone, or not the one that was trained (known since it is recorded, by
    its weights and then by all of its files)."""
    there, same = (folder / "config.json").is_file(), True
    if "model_files" in manifest:
        same = file_hashes(folder) == manifest["model_files"]
    elif there and "trained_model" in manifest:
        same = weights_hash(folder) == manifest["trained_model"]
    if not (there and same):
        raise RunError(
            f"run {key}: its model/ {'was changed or damaged after training' if there else 'is gone'}: "
            f"remove the folder {key} from the store and make the run again"
        )
