"""The notebooks' structure, and the runner that executes them: both refuse before anything runs.

A notebook starts with a title and what it answers, has one cell of parameters, literals only, before any
other code, defines nothing, keeps its cells short, and is committed as a fresh kernel ran it: in order,
without errors, warnings, progress bars or paths of the machine.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from run_store import finished_run, key

from gdro import notebooks, study

FOLDER = Path(__file__).parent.parent / "notebooks"
ALL = sorted(FOLDER.glob("*.ipynb"))
PATHS = re.compile(r"(?<![\w.:/])/(home|root|tmp|work|Users|usr|opt|var|mnt)/|[A-Z]:\\\\|site-packages")
RESIDUE = re.compile(r"\d+%\||it/s\]|s/it\]|\[\d\d:\d\d<|IProgress")
LINES = 20
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def outputs_as_text(cell):
    for output in cell.outputs:
        yield output.get("text", "")
        yield from (
            str(value) for kind, value in output.get("data", {}).items() if not kind.startswith("image/")
        )


def test_the_main_line_is_there():
    names = {path.stem for path in ALL}
    main = ("04_train", "05_evaluate", "06_main_results", "07_prompt_dynamics", "08_rollout_dynamics")
    assert {"00_start_here", *main} <= names


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.stem)
def test_structure(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    tagged = [notebooks.TAG in cell.metadata.get("tags", ()) for cell in code_cells(path)]
    assert tagged[0], "the first code cell holds the parameters"
    assert sum(tagged) == 1, "parameters stand in one cell"
    assert notebooks.parameters(path), "refuses whatever is no literal"


@pytest.mark.parametrize("number", ["01", "02", "03", "06", "07", "08", "09"])
def test_key_tables_are_compared_when_the_notebook_is_validated(number):
    """nbval compares the output of cells with this tag; of the others it asks only that they run."""
    path = next(path for path in ALL if path.stem.startswith(number))
    compared = [c for c in code_cells(path) if "nbval-check-output" in c.metadata.get("tags", ())]
    assert compared
    assert all("text/html" in output.data for cell in compared for output in cell.outputs)


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.stem)
def test_cells_are_short_and_define_nothing(path):
    for cell in code_cells(path):
        assert len(cell.source.splitlines()) <= LINES, cell.source
        assert not re.search(r"^\s*[!%]", cell.source, re.MULTILINE), cell.source
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, DEFINITIONS), cell.source
            assert not (isinstance(node, ast.Constant) and str(node.value).startswith(("/", "~"))), (
                cell.source
            )


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.stem)
def test_what_is_committed_is_clean(path):
    assert not PATHS.search("\n".join(cell.source for cell in read(path).cells))
    for cell in code_cells(path):
        assert not any(output.output_type == "error" for output in cell.outputs)
        assert not any(output.get("name") == "stderr" for output in cell.outputs), "warnings were kept"
        for text in outputs_as_text(cell):
            assert not PATHS.search(text), text
            assert not RESIDUE.search(text), text


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.stem)
def test_outputs_are_those_of_one_run_from_top_to_bottom(path):
    counts = [cell.execution_count for cell in code_cells(path)]
    never_run = not any(counts) and not any(cell.outputs for cell in code_cells(path))
    assert never_run or counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.stem)
def test_names_are_explained_by_a_line_of_prose(path):
    cells = read(path).cells
    assert sum(cell.cell_type == "markdown" for cell in cells) >= 4
    assert cells[-1].cell_type == "markdown", "the last cell says what was seen and what this cannot show"


@pytest.fixture(scope="module")
def small_store(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    finished_run(store, key("rollout-gdro"))
    return store


@pytest.mark.parametrize("place", ["root", "own", "elsewhere"])
def test_a_notebook_runs_alike_wherever_it_is_started(small_store, tmp_path, place):
    folder = {"root": FOLDER.parent, "own": FOLDER, "elsewhere": tmp_path}[place]
    given = {"store": str(small_store), "scales": ["tiny-s"], "arms": ["rollout-gdro"], "seeds": [0]}
    words = [word for name, value in given.items() for word in ("-p", name, str(value))]
    source, target = FOLDER / "08_rollout_dynamics.ipynb", tmp_path / "out" / "done.ipynb"
    left = sorted(p.name for p in folder.iterdir())
    done = command(source, target, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    printed = "".join(text for cell in code_cells(target) for text in outputs_as_text(cell))
    assert "runs: tiny-s: rollout-gdro (seed 0); commit 000000000" in printed
    assert "not in the store" not in printed
    assert sorted(p.name for p in folder.iterdir() if p != target.parent) == left


# the runner


def write(path, *sources, tagged=(0,)):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    for number in tagged:
        cells[number].metadata["tags"] = [notebooks.TAG]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)
    return path


@pytest.fixture
def adding(tmp_path):
    text = (
        "import os\nimport tqdm.auto\n"
        "print('sum', a + b, os.environ['OMP_NUM_THREADS'], os.environ['GDRO_PROGRESS'])"
    )
    return write(tmp_path / "adding.ipynb", "a = 1\nb = 2  # two\nnames = ['x']\nstore = None", text)


def test_parameters_are_read_as_literals(adding):
    assert notebooks.parameters(adding) == {"a": 1, "b": 2, "names": ["x"], "store": None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"c": 1}, "no parameter 'c': its parameters are a, b, names, store"),
        ({"a": "1"}, "a='1' is a str, and its default 1 a int"),
        ({"names": "x"}, "names='x' is a str"),
    ],
)
def test_an_unknown_or_mistyped_parameter_is_refused_before_anything_runs(adding, tmp_path, given, message):
    target = tmp_path / "out" / "done.ipynb"
    with pytest.raises(ValueError, match=message):
        notebooks.run(adding, target, given)
    assert not target.parent.exists()


@pytest.mark.parametrize(
    ("sources", "tagged", "message"),
    [
        (["a = 1"], (), "has 0 cells with the tag 'parameters'"),
        (["a = 1", "b = 1"], (0, 1), "has 2 cells"),
        (["a = 1\nb = a"], (0,), "line 2: b is not a literal"),
        (["import os"], (0,), "line 1: only `name = literal`"),
    ],
)
def test_a_notebook_without_plain_parameters_is_refused(tmp_path, sources, tagged, message):
    path = write(tmp_path / "bad.ipynb", *sources, tagged=tagged)
    with pytest.raises(ValueError, match=message):
        notebooks.run(path, tmp_path / "out.ipynb", {})
    assert not (tmp_path / "out.ipynb").exists()
    with pytest.raises(FileNotFoundError, match=r"none\.ipynb"):
        notebooks.parameters(tmp_path / "none.ipynb")


def command(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "gdro.notebooks", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def test_a_notebook_runs_with_its_parameters_threads_and_progress_lines(adding, tmp_path):
    target = tmp_path / "out" / "done.ipynb"
    done = command(adding, target, "--threads", 3, "-p", "a", 40, "-p", "store", "None")
    assert done.returncode == 0, done.stderr
    assert "sum 42 3 lines" in done.stdout
    assert "sum 42 3 lines" in str(read(target))
    assert "IProgress" not in done.stderr, "importing tqdm in a job warns of what a job cannot show"
    assert [p.name for p in target.parent.iterdir()] == ["done.ipynb"]


def test_a_failing_notebook_leaves_no_result_but_what_ran(adding, tmp_path):
    failing = write(tmp_path / "failing.ipynb", "a = 1", "print('so far')", "1 / 0")
    target = tmp_path / "out" / "done.ipynb"
    done = command(failing, target)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert [p.name for p in target.parent.iterdir()] == ["done.failed.ipynb"]
    assert "so far" in str(read(target.with_name("done.failed.ipynb")))
    assert command(adding, target, "-p", "c", 1).returncode == 2


# the graph


def snakemake(*words):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SNAKEMAKE")}
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "-s", str(FOLDER / "Snakefile"), "-c2", "-n", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def jobs(done):
    """{rule: count} of a dry run."""
    assert done.returncode == 0, done.stdout + done.stderr
    table = re.findall(r"^(train|evaluate|figures_\w+) +(\d+)$", done.stdout + done.stderr, re.MULTILINE)
    return {rule: int(count) for rule, count in table}


def test_a_finished_run_is_not_run_again_and_a_trained_one_not_trained_again(tmp_path):
    from run_store import SETTINGS, record

    from gdro.run_writer import RunWriter

    chosen = ["all", "--config", f"store={tmp_path}", "scales=tiny-s", "arms=[grpo,joint]", "seeds=[0,1]"]
    figures = {"figures_all_06": 1, "figures_all_07": 1, "figures_all_08": 1}
    assert jobs(snakemake(*chosen)) == {"train": 4, "evaluate": 4, **figures}
    for seed in (0, 1):
        finished_run(tmp_path, key("grpo", seed))
    assert jobs(snakemake(*chosen)) == {"train": 2, "evaluate": 2, **figures}
    with RunWriter.open(tmp_path, key("joint", 0), SETTINGS) as writer:
        record(writer, 1, 6)
        writer.trained()
    (key("joint", 0).folder(tmp_path) / "04_train.ipynb").touch()
    assert jobs(snakemake(*chosen)) == {"train": 1, "evaluate": 2, **figures}
    for seed in (0, 1):
        (key("joint", seed).folder(tmp_path) / "manifest.json").unlink(missing_ok=True)
        finished_run(tmp_path, key("joint", seed))
    assert jobs(snakemake(*chosen)) == figures
    for name in ("06_main_results", "07_prompt_dynamics", "08_rollout_dynamics"):
        (tmp_path / f"{name}.ipynb").touch()
    assert jobs(snakemake(*chosen)) == {}


def test_the_papers_scales_are_cells_like_the_tiny_ones(tmp_path):
    chosen = ["all", "--config", f"store={tmp_path}", "scales=[1.7B,4B,8B]", "seeds=0"]
    figures = {"figures_all_06": 1, "figures_all_07": 1, "figures_all_08": 1}
    done = snakemake(*chosen, "machine={processes: 4, attn_implementation: sdpa}", "container=image.sif")
    arms = len(study.PROFILES["full"]["arms"])
    cells = 3 * arms
    assert jobs(done) == {"train": cells, "evaluate": cells, **figures}
    asked = snakemake(*chosen, "machine={processes: 4}", "--workflow-profile", "none")
    rules = trainings(asked)
    assert len(rules) == cells
    assert all("gpu=4" in part and "runtime=1440" in part for part in rules)
    assert sum("mem_mb=384000" in part for part in rules) == arms
    refused = snakemake(*chosen, "machine={prompts: 4}")
    assert refused.returncode != 0
    assert "machine sets 'prompts'" in refused.stdout + refused.stderr


def test_on_one_machine_the_jobs_that_take_gpus_run_one_after_another(tmp_path):
    """Snakemake counts GPUs and hands out none: two jobs at a time would both take the first ones."""
    asked = snakemake(
        "all", "--config", f"store={tmp_path}", "scales=[1.7B]", "seeds=0", "--quiet", "progress"
    )
    rules = trainings(asked)
    assert len(rules) == len(study.PROFILES["full"]["arms"])
    assert all("gpu=1," in part for part in rules)


def trainings(done):
    """What a listing says of each job that trains."""
    parts = re.split(r"^rule ", done.stdout + done.stderr, flags=re.MULTILINE)
    return [part for part in parts if part.startswith("train:")]


def test_a_dry_run_of_the_papers_scale_shows_its_plan_and_writes_nothing(tmp_path):
    rows = "".join(f'{{"prompt": "What is {i}+1?", "solution": "{i + 1}"}}\n' for i in range(300))
    (tmp_path / "dapo.jsonl").write_text(rows, encoding="utf-8")
    target, store = tmp_path / "plan" / "done.ipynb", tmp_path / "store"
    given = {"scale": "1.7B", "arm": "joint", "cycles": None, "dry_run": True, "store": str(store)}
    given["machine"] = {"data_path": str(tmp_path)}
    words = [word for name, value in given.items() for word in ("-p", name, str(value))]
    done = command(FOLDER / "04_train.ipynb", target, *words)
    assert done.returncode == 0, done.stderr
    assert "Qwen/Qwen3-1.7B-Base on dapo: 300 rows" in done.stdout
    assert "GPU hours in all" in done.stdout
    assert "a dry run: nothing is trained" in done.stdout
    assert not store.exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("scale=tiny-s", "unknown option 'scale'"),
        ("scales=tiny-x", "unknown scale 'tiny-x'"),
        ("arms=gpro", "unknown arm 'gpro'"),
        ("seeds=-1", "seed must be at least 0, got -1"),
        ("machine=processes", "machine='processes' must be a mapping"),
        ("machine={processes: 4}", "sets fields of a recipe"),
    ],
)
def test_a_misspelt_option_of_the_graph_is_an_error(option, message):
    done = snakemake("all", "--config", option)
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
