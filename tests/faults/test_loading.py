"""What is loaded is data: no pickle, no code that comes with a model or as a parameter, no path out of the
store."""

import ast
import json
import pickle
import shutil
from pathlib import Path

import nbformat
import pytest
import tiny_model as tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from papermill.translators import PythonTranslator
from run_store import finished_run, key

import gdro
from gdro import benchmarks, checkpoints, notebooks, runs, tasks, training
from gdro.gallery import save_table
from gdro.recipe import overridden, recipe
from gdro.runs import RunError, RunKey

SOURCES = sorted(Path(gdro.__file__).parent.glob("*.py"))
HARMFUL = {"eval", "exec", "compile", "__import__"}
PICKLES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node, {word.arg: word.value for word in node.keywords}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_package_neither_unpickles_nor_runs_text(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not {name.split(".")[0] for name in names} & PICKLES
    for name, node, words in calls(tree):
        if isinstance(node.func, ast.Name):
            assert name not in HARMFUL, f"{path.name}, line {node.lineno}"
        where = ast.unparse(node.func)
        assert where not in {"torch.load", "yaml.load", "np.load", "numpy.load", "pd.read_pickle"}
        assert "shell" not in words
        trusted = words.get("trust_remote_code")
        assert not (isinstance(trusted, ast.Constant) and trusted.value), f"{path.name}, line {node.lineno}"


# models


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny.model_folder(), folder)
    return folder


def test_a_model_that_brings_its_own_code_is_refused_and_the_code_does_not_run(model, tmp_path):
    touched = tmp_path / "ran"
    (model / "own.py").write_text(
        f"import pathlib; pathlib.Path({str(touched)!r}).touch()\nclass Own: pass\n"
    )
    config = json.loads((model / "config.json").read_text())
    own = {name: "own.Own" for name in ("AutoConfig", "AutoModelForCausalLM")}
    (model / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": own}))
    with pytest.raises(RunError, match=r"(?s)model cannot be loaded .*no code of its own"):
        training.load(model)
    assert not touched.exists()


def test_weights_in_a_pickle_are_refused_and_not_read(model, tmp_path):
    touched = tmp_path / "ran"
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(touched)))
    with pytest.raises(RunError, match=r"(?s)model cannot be loaded .*whole model.safetensors"):
        training.load(model)
    assert not touched.exists()


@pytest.mark.parametrize("kept", [0, 6, 0.5, 0.99])
def test_weights_that_are_cut_short_are_refused_by_name(model, kept):
    path = model / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if kept < 1 else kept])
    with pytest.raises(RunError, match="the model folder model cannot be loaded"):
        training.load(model)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_a_checkpoint_with_code_in_it_does_not_run_it(tmp_path, name, writer):
    """Even one whose marker was made to fit."""
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    tiny.train(tmp_path, **saving | {"max_steps": 1})
    folder, touched = tmp_path / "checkpoint-1", tmp_path / "ran"
    if writer == "pickle":
        (folder / name).write_bytes(pickle.dumps(Trap(touched), protocol=2))
    else:
        torch.save({"state": Trap(touched)}, folder / name)
    checkpoints.write_marker(folder, 1)
    trainer = tiny.make(tmp_path, **saving)
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        trainer.train(resume_from_checkpoint=True)
    assert not touched.exists()


# names that would lead out of the store


OUTSIDE = [
    "../elsewhere",
    "..",
    "/tmp",
    "a/../../b",
    "a\x00b",
    "a/b",
    "~",
    ".",
    "",
    "a\n",
    "$(touch x)",
    "C:\\x",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_of_runs_figures_and_recipes_stay_inside(tmp_path, name):
    for names in ((name, "grpo", 0), ("tiny-s", name, 0), ("tiny-s", "grpo", name)):
        with pytest.raises(RunError, match="is not a name for a run"):
            RunKey(*names)
    folder = tmp_path / "figures"
    for names in ({"name": name, "family": "tiny"}, {"name": "table1", "family": name}):
        with pytest.raises(ValueError, match="no name for a figure"):
            save_table(None, caption="", latex="", manifests={}, notebook="", root=folder, **names)
    assert not folder.exists()
    with pytest.raises(ValueError, match="unknown tiny model"):
        tasks.model_path(name)
    with pytest.raises(ValueError, match="unknown task"):
        tasks.load(name)


def test_a_manifest_cannot_send_a_reader_elsewhere(tmp_path):
    """Neither by the name of the run nor by the names of its files."""
    folder = finished_run(tmp_path, key()).folder(tmp_path)
    manifest = runs.read_manifest(tmp_path, key())
    secret = tmp_path / "secret.parquet"
    shutil.copy(folder / "steps.parquet", secret)
    runs.write_manifest(folder, manifest | {"arm": "../../secret"})
    with pytest.raises(RunError, match="moved here from elsewhere"):
        runs.read_run(tmp_path, key())
    read = []
    files = {**manifest[runs.FILES], "../../../secret.parquet": "0"}
    runs.write_manifest(folder, manifest | {runs.FILES: files})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "file_hash", lambda path, keep=runs.file_hash: read.append(path) or keep(path))
        runs.read_run(tmp_path, key())
    assert {path.parent for path in read} == {folder}


def test_a_link_in_the_place_of_a_run_is_no_run_of_that_name(tmp_path):
    finished_run(tmp_path / "other", key(seed=1))
    here = key().folder(tmp_path / "store")
    here.parent.mkdir(parents=True)
    here.symlink_to(key(seed=1).folder(tmp_path / "other"))
    with pytest.raises(RunError, match="moved here from elsewhere"):
        runs.read_run(tmp_path / "store", key())


def test_a_recipe_is_plain_yaml(tmp_path):
    touched = tmp_path / "ran"
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"seed: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{touched}']]"
    )
    for read in (
        lambda: recipe(path),
        lambda: overridden({}, [f"seed={path.read_text().partition(' ')[2]}"]),
    ):
        with pytest.raises(Exception, match="could not determine a constructor"):
            read()
    assert not touched.exists()


# parameters of notebooks


TEMPLATE = 'store = "data/runs"\nseed = 0\nsuites = None\n'
NASTY = [
    '"; import os; os.abort() #',
    "'''\nimport os; os.abort()\n'''",
    "\\",
    '\\"; x = 1 #',
    "$(touch ran)",
    "`touch ran`",
    "{params.call}",
    "\u2028import os",
    "__import__('os').abort()",
    "%%bash\ntouch ran",
    "!touch ran",
]


@pytest.fixture
def notebook(tmp_path):
    cell = nbformat.v4.new_code_cell(TEMPLATE, metadata={"tags": ["parameters"]})
    path = tmp_path / "some.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    return path


def written(parameters):
    """The values that the cell which papermill writes assigns, which must be literals."""
    cell = ast.parse(PythonTranslator.codify(parameters))
    return {node.targets[0].id: ast.literal_eval(node.value) for node in cell.body}


@pytest.mark.parametrize("text", NASTY)
def test_text_that_looks_like_code_stays_text(notebook, text):
    given_ = {"store": text, "suites": [text, {text: [text]}]}
    notebooks.check(notebook, given_)
    assert written(given_) == given_
    assert notebooks.value(repr(text)) == text


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(PLAIN)
def test_plain_data_of_any_kind_comes_back_as_it_was(value):
    assert notebooks._is_plain(value)
    assert written({"suites": value}) == {"suites": value}


class Code(str):
    """A text that prints itself as something else."""

    def __format__(self, form):
        return '"; import os; os.abort() #"'


@pytest.mark.parametrize(
    "value",
    [
        ('"; import os; os.abort() #',),
        {'"; import os #'},
        b'"; import os #',
        ["fine", ('"; x = 1 #',)],
        {"fine": {1: "no text"}},
        1j,
        Code("x"),
        object(),
        float,
    ],
    ids=["tuple", "set", "bytes", "nested", "key", "complex", "kind of text", "object", "type"],
)
def test_what_is_no_plain_data_is_refused_and_does_not_reach_the_notebook(notebook, value):
    before = notebook.read_bytes()
    with pytest.raises(ValueError, match=r"suites=.* is no plain data: give None, a number, a text"):
        notebooks.run(notebook, notebook.with_name("out.ipynb"), {"suites": value})
    assert notebook.read_bytes() == before
    assert not notebook.with_name("out.ipynb").exists()


def test_a_parameters_cell_with_code_is_refused(tmp_path):
    cell = nbformat.v4.new_code_cell("store = __import__('os').getcwd()", metadata={"tags": ["parameters"]})
    path = tmp_path / "some.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    with pytest.raises(ValueError, match="store is not a literal"):
        notebooks.parameters(path)


def test_data_files_hold_data_and_not_paths_or_code(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "answer": "1", "suite": "../../x", "level": 2}\n__import__("os")\n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        list(benchmarks.json_lines(path))
