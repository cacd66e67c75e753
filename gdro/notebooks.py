"""Run a notebook as a job: parameters checked before anything runs, progress seen while it runs, the result
written whole.

``python -m gdro.notebooks notebooks/04_train.ipynb out.ipynb --threads 1 -p scale tiny-s -p seed 0``.
papermill only warns of a parameter that a notebook does not have, and runs one without a ``parameters`` cell
on its defaults; here both are errors.
"""

import argparse
import ast
import os
import sys
from pathlib import Path

import nbformat
import papermill
from papermill.exceptions import PapermillExecutionError

from gdro import runs
from gdro.progress import VARIABLE

TAG = "parameters"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def parameters(notebook) -> dict:
    """Names and defaults of a notebook's parameters, in order.

    The one cell with the tag ``parameters`` assigns literals and does nothing else. A notebook with none or
    several such cells, or with anything but literals in it, raises ``ValueError`` naming the notebook and the
    line.
    """
    path = Path(notebook)
    if not path.is_file():
        raise FileNotFoundError(f"no notebook {path.name!r} in {path.parent.name!r}: check the path")
    cells = nbformat.read(path, as_version=4).cells
    tagged = [c for c in cells if TAG in c.metadata.get("tags", ())]
    if len(tagged) != 1:
        raise ValueError(
            f"{path.name} has {len(tagged)} cells with the tag {TAG!r}: give that tag to exactly one cell"
        )
    found = {}
    for node in ast.parse(tagged[0].source).body:
        name = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if not isinstance(name, ast.Name):
            raise ValueError(
                f"{path.name}, parameters, line {node.lineno}: only `name = literal` may stand there"
            )
        try:
            found[name.id] = ast.literal_eval(node.value)
        except ValueError as error:
            raise ValueError(
                f"{path.name}, parameters, line {node.lineno}: {name.id} is not a literal"
            ) from error
    return found


def check(notebook, given: dict) -> None:
    """Refuse a parameter that the notebook lacks, of another type than its default's (None takes any), or
    that is no plain data, which would be written into the notebook as it prints itself."""
    known = parameters(notebook)
    for name, value in given.items():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise ValueError(f"{Path(notebook).name} has no parameter {name!r}: its parameters are {listed}")
        if not _is_plain(value):
            raise ValueError(
                f"{Path(notebook).name}: {name}={value!r} is no plain data: give None, a number, a text, or "
                "a list or dictionary of these"
            )
        default = known[name]
        if default is not None and value is not None and type(value) is not type(default):
            raise ValueError(
                f"{Path(notebook).name}: {name}={value!r} is a {type(value).__name__}, "
                f"and its default {default!r} a {type(default).__name__}: give one of that type"
            )


def _is_plain(value) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def run(notebook, target, given: dict, threads: int = 1) -> None:
    """Execute a notebook with parameters into ``target``, which appears only when it ran to its end.

    Its printed lines are passed on as they come. Every process it starts uses ``threads`` threads. Where it
    fails, what ran is kept beside the target as ``<name>.failed.ipynb`` and the error is raised.
    """
    check(notebook, given)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ValueError(f"threads={threads!r} must be an integer of at least 1")
    target = Path(target)
    failed = target.with_suffix(".failed.ipynb")
    failed.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    surroundings = {**dict.fromkeys(THREAD_VARIABLES, str(threads)), VARIABLE: "lines"}
    # tqdm, imported in a kernel, asks for ipywidgets, which show nothing in a job
    quiet = (os.environ.get("PYTHONWARNINGS"), "ignore:IProgress not found")
    surroundings["PYTHONWARNINGS"] = ",".join(filter(None, quiet))
    kept = {name: os.environ.get(name) for name in surroundings}
    os.environ.update(surroundings)
    try:
        runs.write_atomically(target, lambda path: _execute(notebook, path, given, failed))
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _execute(notebook, path, given, failed):
    try:
        papermill.execute_notebook(
            str(notebook),
            str(path),
            parameters=given,
            progress_bar=False,
            stdout_file=sys.stdout,
            stderr_file=sys.stderr,
            request_save_on_cell_execute=False,
            extra_arguments=["--log-level=40"],  # a kernel's errors, not its advice about transports
        )
    except PapermillExecutionError:
        os.replace(path, failed)
        raise


def value(text: str):
    """A command-line value: a Python literal where it is one, else the text.

    >>> value("3"), value("tiny-s"), value("['a']")
    (3, 'tiny-s', ['a'])
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def main(arguments=None) -> int:
    """Command line: 0 when the notebook ran, 2 when refused, 1 when it failed, 130 when interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook")
    parser.add_argument("target")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    options = parser.parse_args(arguments)
    try:
        run(options.notebook, options.target, {n: value(v) for n, v in options.p}, options.threads)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except PapermillExecutionError as error:
        print(f"error: {options.notebook} failed: {error.ename}: {error.evalue}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"{options.notebook} was interrupted: run it again, and it goes on where it can", file=sys.stderr
        )
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
