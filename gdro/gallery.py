"""Keeping figures: SVG, PNG and the data behind them, and an index that says which runs they came from."""

import fcntl
import os
import re
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from gdro import runs

INDEX = "README.md"
_ROW = re.compile(r"\| \[(?P<name>[^\]]+)\]\(")
_HEAD = """# Figures

Written by the notebooks; do not edit by hand. Every figure is there as SVG and PNG with the data behind it as
CSV, every table as CSV and LaTeX. "Runs" names what it was made from: scale, study arms, seeds and the
commits that made the runs.

| figure | what it shows | notebook | runs |
|---|---|---|---|
"""


def save_figure(figure, name, caption, *, data, manifests, notebook, root="figures", family="tiny"):
    """Write ``<root>/<family>/<name>`` as SVG, PNG and CSV, enter it into the index, and return the image for
    a notebook.

    Args: ``data`` the frame behind the figure, None for a drawing; ``manifests`` of the runs it came from
    (`runs.Frames`, or `of_rows`), empty for what was not measured here, or a text that says what it came from
    where that was no run; ``notebook`` the name of the notebook that makes it. Raises ``ValueError``
    for a name that is no plain word.
    """
    from gdro import figures  # matplotlib, only where something is drawn

    if root is None:
        return show(figure)
    folder = _folder(root, family, name)
    runs.write_atomically(folder / f"{name}.svg", lambda path: figures.save(figure, path, None))
    image = show(figure)
    runs.write_atomically(folder / f"{name}.png", lambda path: path.write_bytes(image.data))
    if data is not None:
        _write_csv(folder / f"{name}.csv", data)
    _enter(root, f"{family}/{name}", f"{family}/{name}.png", caption, notebook, manifests)
    return image


def save_table(table, name, caption, *, latex, manifests, notebook, root="figures", family="tiny"):
    """Write ``<root>/<family>/<name>`` as CSV and LaTeX (``latex``), enter it into the index, return it."""
    if root is None:
        return table
    folder = _folder(root, family, name)
    _write_csv(folder / f"{name}.csv", table)
    runs.write_atomically(folder / f"{name}.tex", lambda path: path.write_text(latex, encoding="utf-8"))
    _enter(root, f"{family}/{name}", f"{family}/{name}.csv", caption, notebook, manifests)
    return table


def show(figure):
    """The figure as a PNG that a notebook displays."""
    import io

    from IPython.display import Image

    from gdro import figures

    buffer = io.BytesIO()
    figures.save(figure, None, buffer)
    return Image(data=buffer.getvalue(), width=int(100 * figure.get_figwidth()))


def of_arms(manifests: dict, arms) -> dict:
    """The manifests of these study arms: what a figure that shows no other arm was made from."""
    return {name: m for name, m in manifests.items() if m["arm"] in set(arms)}


def of_rows(kept: pd.DataFrame) -> dict:
    """What stands for the manifests of runs of which rows are kept (`gdro.evidence.kept`)."""
    each = kept.drop_duplicates(["scale", "arm", "seed"])[["scale", "arm", "seed", "commit"]]
    return dict(enumerate(each.rename(columns={"commit": "git_commit"}).to_dict("records")))


def describe(manifests: dict | str) -> str:
    """Runs in words: "tiny-s: grpo, joint (seeds 0, 1)", and the commits that made them.

    >>> describe({"a": {"scale": "tiny-s", "arm": "grpo", "seed": 0, "git_commit": "0123456789abc"}})
    'tiny-s: grpo (seed 0); commit 012345678'
    """
    if isinstance(manifests, str):
        return manifests
    if not manifests:
        return "none: nothing in it was measured here"
    arms = defaultdict(list)
    for manifest in manifests.values():
        arms[manifest["scale"], manifest["arm"]].append(manifest["seed"])
    alike = defaultdict(list)
    for (scale, arm), seeds in arms.items():
        alike[scale, tuple(sorted(seeds))].append(arm)
    parts = [
        f"{scale}: {', '.join(names)} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})"
        for (scale, seeds), names in alike.items()
    ]
    commits = sorted({m.get("git_commit", "unknown") for m in manifests.values()})
    short = [c[:9] + ("+changes" if c.endswith("+changes") else "") for c in commits]
    return f"{'; '.join(parts)}; commit{'s' * (len(short) > 1)} {', '.join(short)}"


def _folder(root, family, name) -> Path:
    for word in (family, name):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", word):
            raise ValueError(
                f"{word!r} is no name for a figure or its folder: use letters, digits, '-' and '_'"
            )
    folder = Path(root) / family
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_csv(path, frame: pd.DataFrame):
    runs.write_atomically(
        path, lambda p: frame.to_csv(p, index=False, float_format="%.6g", lineterminator="\n")
    )


def _enter(root, name, link, caption, notebook, manifests):
    """Put or replace one row of the index, which stays sorted by name."""
    path = Path(root) / INDEX
    cells = (f"[{name}]({link})", caption, f"`{notebook}`", describe(manifests))
    row = "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
    with _alone(root):
        old = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        rows = {m["name"]: line for line in old if (m := _ROW.match(line))} | {name: row}
        text = _HEAD + "".join(f"{rows[key]}\n" for key in sorted(rows))
        runs.write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


@contextmanager
def _alone(folder):
    """Hold ``folder`` against other processes: notebooks that run side by side enter the same index."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
