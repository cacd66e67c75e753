"""The layers of the package, read from the import statements, and what importing it loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gdro

PACKAGE = Path(gdro.__file__).parent
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")

# A module may import those of lower layers and, in the layers marked so, of its own.
LAYERS = [
    {"checks"},
    {
        "simplex",
        "budget_tables",
        "allocation",
        "batch_budget",
        "rollout_settings",
        "reward_variance",
        "statistics",
        "windows",
        "difficulty_settings",
    },
    {"difficulty", "prompt_gdro", "exp3p", "rollout_gdro", "sqrt_law"},
    {"plan", "outcomes", "report", "controller"},
    {
        "study",
        "launch",
        "notebooks",
        "train",
    },  # everything that is not named here lies between the controller and these
]
BETWEEN = 3.5
FREE_WITHIN = {0, 1, 3, BETWEEN, 4}  # the adversaries and the classifier never import each other
TORCH = {"trainer", "evaluation", "pretrain", "gradients", "probe", "train", "check_gpu"}
STUDY = {"study", "notebooks"}  # the study and its part that runs notebooks
NOTEBOOK_WORDS = ("papermill", ".ipynb")


def imports(path):
    """Dotted names that a file imports, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write imports from the package's root"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def siblings(module):
    """Modules of the package that ``module`` imports."""
    names = {name.split(".")[1] for name in imports(PACKAGE / f"{module}.py") if name.startswith("gdro.")}
    return names & set(MODULES)


def test_type_checkers_are_told_the_names_that_are_loaded_on_first_use():
    tree = ast.parse(Path(gdro.__file__).read_text(encoding="utf-8"))
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("gdro.")
        for alias in node.names
    }
    assert sorted(told) == gdro.__all__
    for name, module in told.items():
        assert getattr(gdro, name).__module__ == module
    assert (PACKAGE / "py.typed").is_file()


def tops(module):
    return {name.split(".")[0] for name in imports(PACKAGE / f"{module}.py")}


def layer(module):
    return next((i for i, names in enumerate(LAYERS) if module in names), BETWEEN)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module):
    own = layer(module)
    for other in siblings(module):
        assert layer(other) < own or (layer(other) == own and own in FREE_WITHIN), f"{module} imports {other}"


def test_the_two_games_are_not_coupled():
    for module in sorted({"prompt_gdro", "rollout_gdro"} & set(MODULES)):
        assert not siblings(module) & {"prompt_gdro", "rollout_gdro", "difficulty"}


def test_no_import_goes_in_a_circle():
    graph = {module: siblings(module) for module in MODULES}
    while graph:
        leaves = {module for module, needs in graph.items() if not needs}
        assert leaves, f"these import each other in a circle: {sorted(graph)}"
        graph = {module: needs - leaves for module, needs in graph.items() if module not in leaves}


@pytest.mark.parametrize("module", [m for m in MODULES if layer(m) < BETWEEN])
def test_the_mathematics_needs_numpy_and_scipy_only(module):
    allowed = {"numpy", "scipy", "gdro", *sys.stdlib_module_names}
    assert tops(module) <= allowed


@pytest.mark.parametrize("module", MODULES)
def test_only_figures_draws(module):
    if not (module.startswith("figure") or module.endswith("_figures")):  # figures, and what it is split into
        assert not tops(module) & {"matplotlib", "seaborn"}


@pytest.mark.parametrize("module", MODULES)
def test_only_the_study_knows_of_notebooks(module):
    if module not in STUDY:
        tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
        strings = [
            n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        ]
        names = tops(module)
        for word in NOTEBOOK_WORDS:
            assert word not in names
            assert not any(word in text for text in strings), f"{module} mentions {word}"


def loaded_by(code):
    """Top-level modules that a fresh interpreter has loaded after ``code``."""
    script = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_loads_neither_torch_nor_trl_nor_matplotlib():
    mathematics = [f"import gdro.{module}" for module in MODULES if layer(module) < BETWEEN]
    heavy = {"torch", "trl", "transformers", "datasets", "matplotlib", "seaborn", "papermill"}
    assert not loaded_by("\n".join(["import gdro", *mathematics])) & heavy
    assert not loaded_by("import gdro") & (heavy | {"numpy", "scipy"})
    assert "numpy" in loaded_by("from gdro import Controller, OnlineDifficultyClassifier, PromptGDRO")


def test_importing_takes_a_fraction_of_a_second():
    script = "import time; start = time.process_time(); import gdro; print(time.process_time() - start)"
    taken = [
        float(
            subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        )
        for _ in range(3)
    ]
    assert min(taken) < 0.3, f"import gdro took {taken} seconds of processor time"
