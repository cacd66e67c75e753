"""The README's promises that a machine can check: its Python runs, its test command is the gate's."""

import itertools
import re
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCES = [(match[1], match[2], README.count("\n", 0, match.start(2))) for match in FENCE.finditer(README)]


# TRL calls the method under this name; transformers 5 has renamed it
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_(en|dis)able` is deprecated:FutureWarning")
def test_every_python_fence_runs(tmp_path, monkeypatch, capsys):
    """In order, in one namespace and an empty folder; a traceback shows the README's line."""
    monkeypatch.chdir(tmp_path)
    fences = [(code, above) for language, code, above in FENCES if language == "python"]
    assert len(fences) >= 2
    names = {"__name__": "__main__"}
    for code, above in fences:
        exec(compile("\n" * above + code, "README.md", "exec"), names)
    assert names["trainer"].state.global_step == names["args"].max_steps
    assert names["trainer"].controller.cycle > 0
    assert (tmp_path / names["args"].output_dir).is_dir()
    assert 2 <= float(capsys.readouterr().out.split()[-1]) <= 12  # rollouts a prompt, printed last


def test_the_executor_of_the_slurm_profile_is_named_and_comes_with_the_extra():
    profile = yaml.safe_load((ROOT / "notebooks/profiles/slurm/config.yaml").read_text(encoding="utf-8"))
    package = f"snakemake-executor-plugin-{profile['executor']}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert any(needed.startswith(package) for needed in extras["cluster"])
    assert f"`{package}`" in README
    assert ".[cluster]" in README


def test_the_gate_runs_the_test_command_of_the_readme():
    (line,) = [code.strip() for language, code, _ in FENCES if language == "bash" and "nbval" in code]
    environment, installs, checks = re.fullmatch(r"(.*activate) && (pip .*?) && (ruff .*)", line).groups()
    assert environment == "python3 -m venv .venv && . .venv/bin/activate"
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert checks in gate
    assert all(install in gate.replace(" --quiet", "") for install in installs.split(" && "))


def test_the_table_of_results_is_that_of_the_recorded_runs():
    """Every cell again from the numbers behind the committed figures."""
    lines = [line.strip("| ").split(" | ") for line in README.splitlines() if line.startswith("|")]
    start = next(i for i, line in enumerate(lines) if line[0].startswith("minus GRPO"))
    scales = [name.strip("`") for name in lines[start][1:]]
    folder = ROOT / "figures" / "tiny"
    found = pd.read_csv(folder / "table_differences.csv").query("metric == 'mean'")
    found = found.set_index(["arm", "scale"])[["estimate", "low", "high"]] * 100
    scores = pd.read_csv(folder / "fig01.csv").query(
        "panel == 'scores' and suite == 'all' and metric == 'mean'"
    )
    scores = scores.set_index(["arm", "scale"])["estimate"] * 100
    rows = list(itertools.takewhile(lambda line: len(line) == len(lines[start]), lines[start + 2 :]))
    assert len(rows) == 6
    for name, *cells in rows:
        arm = re.match(r"`([\w-]+)`", name)
        for scale, cell in zip(scales, cells, strict=True):
            if arm is None:
                assert cell == f"{scores['grpo', scale]:.1f}"
            else:
                assert cell == "{:+.1f} [{:.1f}, {:.1f}]".format(*found.loc[(arm[1], scale)])
