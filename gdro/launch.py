"""A cell of a scale with a recipe: its run begun in the store, then trained by `gdro.train`'s entry point."""

from pathlib import Path

import yaml

from gdro import paper_scale, ready, runs, start, tasks
from gdro.progress import Progress
from gdro.provenance import surroundings, weights_hash
from gdro.recipe_files import DERIVED
from gdro.run_writer import RunWriter, refuse_other_settings

FINGERPRINTS = ("data_fingerprint", "model_fingerprint")


def train(store, key, scale, chosen: dict, model, progress) -> Path:
    """Train the cell ``key`` with settings ``chosen``, or go on with it; returns the run's folder.

    What is trained already is only compared with the settings. Everything else is checked (`gdro.ready`, then
    the recipe's fields) before the run's manifest is written; the processes that train find the run by that,
    and record it.
    """
    folder, identity = key.folder(store), paper_scale.identity(chosen)
    if runs.stage(store, key) in ("trained", "finished"):
        made = runs.existing_manifest(store, key)
        refuse_other_settings(key, made, identity | {k: made["settings"][k] for k in FINGERPRINTS})
        return folder
    base, data = ready.to_train(scale, key.arm, model, chosen)
    identity |= {
        "data_fingerprint": tasks.fingerprint(data),
        "model_fingerprint": chosen["model_revision"] if model is None else weights_hash(base),
    }
    values = _values(scale, chosen) | {
        "model_name_or_path": str(base),
        "output_dir": str(folder / "checkpoints"),
        "record": str(folder),
        "disable_tqdm": True,
    }
    from gdro import train as entry  # torch and TRL, only once there is something to train

    checked = entry.checked(values)
    with RunWriter.open(store, key, identity, surroundings(identity["data_fingerprint"])) as writer:
        writer.flush()
    file = folder / "checkpoints" / "recipe.yaml"  # it goes when the checkpoints go
    file.parent.mkdir(exist_ok=True)
    runs.write_atomically(file, lambda path: path.write_text(yaml.safe_dump(values), encoding="utf-8"))
    shown = Progress(f"train {key}", chosen["max_steps"], progress)
    entry.start(checked, file, progress=shown, again="training the same cell again")
    return folder


def plan(scale, chosen: dict) -> str:
    """The trainer's own dry run of a cell: every check, and what the run needs, as text."""
    from gdro import train as entry

    with ready.copies_named():
        return entry.dry_run(_values(scale, chosen))


def _values(scale, chosen):
    """The fields of the cell's recipe: its settings without what follows from others."""
    values = {name: value for name, value in chosen.items() if name not in DERIVED}
    return values | {"data_path": start.training_file(scale, chosen)}
