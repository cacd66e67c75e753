"""What to run first on a GPU: ``python -m gdro.check_gpu``, about ten minutes on one card.

A Qwen3 model of random weights (``--shape 1.7B``) is made, loaded, sampled from and trained for a few steps
by every study arm, with transformers, with LoRA and with vLLM in the same process, on random prompts under a
reward that tosses a coin. Memory and times stand beside those of `gdro.planning`. Every part is a process of
its own, so that one that dies takes nothing with it and leaves no memory behind; a part whose package or
device is absent is skipped by name. It prints one table and writes one JSON file; it ends with 0 where
everything that ran was fine, with 1 where something failed, with 2 where nothing could run.

It has not been run on a GPU: on a CPU it is tested with ``--device cpu --shape tiny``. What needs several
GPUs (FSDP2, ZeRO-3, vLLM's server) is not in it.
"""

import argparse
import errno
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType

import pandas as pd
import torch

from gdro import checks, runs
from gdro.gpu_parts import Check, run_part
from gdro.provenance import surroundings
from gdro.study_arms import MAIN

PACKAGES = MappingProxyType({"flash-attention": "flash_attn", "lora": "peft", "vllm": "vllm"})
PARTS = (
    *("model", "generate", "flash-attention"),
    *(f"train/{arm}" for arm in MAIN),
    *("lora/joint", "vllm/grpo", "vllm/joint"),
)
COLUMNS = ("part", "verdict", "seconds", "tokens/s", "peak GB", "planned GB", "s a generation", "planned s")


def why_not(part: str, check: Check) -> str | None:
    """Why a part cannot run here, or None."""
    if check.device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device"
    kind = part.split("/")[0]
    if kind in PACKAGES and importlib.util.find_spec(PACKAGES[kind]) is None:
        return f"package {PACKAGES[kind]} is not installed"
    if kind in ("flash-attention", "vllm") and check.device == "cpu":
        return "needs a CUDA device"
    return None


def run(check: Check, parts=PARTS, minutes: float = 10.0, output="check_gpu.json", say=print) -> list[dict]:
    """Run the parts one after another, write ``output`` after each, and return a row a part.

    A row has part, verdict ("fine", "failed: why" or "skipped: why"), seconds and what the part measured.
    Parts that the ``minutes`` do not reach are skipped, the one they end in fails. Raises as `asked`.
    """
    parts = asked(parts, minutes, output)
    end, rows = time.monotonic() + 60 * minutes, []
    about = {"check": asdict(check), "card": _card(check), **surroundings("random prompts")}
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            rows.append(_one(part, check, Path(folder), end - time.monotonic()))
            runs.write_json(output, {**about, "parts": rows})
            say(f"{part}: {rows[-1]['verdict']}")
    return rows


def asked(parts, minutes, output) -> list[str]:
    """The parts to run: those given, after "model", which all others need.

    Raises ``ValueError`` or ``TypeError`` for an unknown part and for minutes that are none, ``OSError`` for
    an ``output`` that cannot be written.
    """
    for part in parts:
        checks.one_of("part", part, PARTS)
    checks.real_number("minutes", minutes, above=0)
    try:
        if Path(output).is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        with tempfile.TemporaryFile(dir=Path(output).parent):
            pass
    except OSError as error:
        raise OSError(
            f"output {str(output)!r} cannot be written ({error.strerror}): name a file in a folder that is "
            "there and takes one"
        ) from error
    return list(dict.fromkeys(("model", *parts)))


def _one(part, check, folder, left):
    reason = why_not(part, check)
    if reason is None and part != "model" and not (folder / "model" / "config.json").is_file():
        reason = "there is no model: the part 'model' did not make it"
    if reason is None and left <= 0:
        reason = "the time was over"
    if reason is not None:
        return {"part": part, "verdict": f"skipped: {reason}"}
    start, result = time.monotonic(), folder / f"{part.replace('/', '-')}.json"
    words = [word for name, value in asdict(check).items() for word in (_option(name), str(value))]
    command = [sys.executable, "-m", "gdro.check_gpu", "--part", part, str(folder), *words]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=left, check=False
        )
    except subprocess.TimeoutExpired:
        return {"part": part, "verdict": "failed: the time was over before it ended", "seconds": left}
    row = {"part": part, "verdict": "fine", "seconds": time.monotonic() - start}
    if done.returncode or not result.is_file():
        log = done.stdout.strip().splitlines()[-30:]
        last = log[-1] if log else f"no word, exit code {done.returncode}"
        return row | {"verdict": f"failed: {last}", "exit_code": done.returncode, "log": log}
    return row | json.loads(result.read_text(encoding="utf-8"))


def table(rows) -> pd.DataFrame:
    """Rows of `run` in gigabytes and seconds, with columns ``COLUMNS``; empty where nothing was measured."""
    found = [
        {
            "part": row["part"],
            "verdict": row["verdict"] if len(row["verdict"]) <= 60 else f"{row['verdict'][:57]}...",
            "seconds": row.get("seconds"),
            "tokens/s": row.get("tokens_a_second"),
            "peak GB": row["peak"] / 1e9 if row.get("peak") else None,
            "planned GB": row["planned"] / 1e9 if row.get("planned") else None,
            "s a generation": row.get("seconds_a_generation"),
            "planned s": row.get("planned_seconds"),
        }
        for row in rows
    ]
    return pd.DataFrame(found, columns=list(COLUMNS))


def status(rows) -> int:
    """0 where everything that ran was fine, 1 where something failed, 2 where nothing ran.

    >>> status([{"verdict": "fine"}, {"verdict": "skipped: no CUDA device"}])
    0
    """
    verdicts = [row["verdict"].split(":")[0] for row in rows]
    if "failed" in verdicts:
        return 1
    return 0 if "fine" in verdicts else 2


def _card(check):
    return "CPU" if check.device == "cpu" or not torch.cuda.is_available() else torch.cuda.get_device_name(0)


def _option(name):
    return f"--{name.replace('_', '-')}"


def _without_nan(value):
    """NaN, which JSON has no word for, as None."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def main(arguments=None) -> int:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m gdro.check_gpu", description=__doc__.splitlines()[0])
    for option in fields(Check):
        parser.add_argument(_option(option.name), type=type(option.default), default=option.default)
    parser.add_argument(
        "--only", nargs="+", default=PARTS, metavar="PART", help=f"model, and some of {', '.join(PARTS[1:])}"
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--output", default="check_gpu.json", help="the JSON file, rewritten after each part")
    parser.add_argument("--part", nargs=2, metavar=("PART", "FOLDER"), help=argparse.SUPPRESS)
    given = vars(parser.parse_args(arguments))
    try:
        check = Check(**{option.name: given[option.name] for option in fields(Check)})
        if given["part"]:
            checks.one_of("part", given["part"][0], PARTS)
        else:
            parts = asked(given["only"], given["minutes"], given["output"])
    except (OSError, TypeError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    if given["part"]:
        part, folder = given["part"][0], Path(given["part"][1])
        measured = run_part(part, check, folder)
        runs.write_json(folder / f"{part.replace('/', '-')}.json", _without_nan(measured))
        return 0
    rows = run(check, parts, given["minutes"], given["output"])
    print(table(rows).to_string(index=False, na_rep="", float_format="{:.2f}".format))
    print(f"everything measured is in {given['output']}")
    return status(rows)


if __name__ == "__main__":
    sys.exit(main())
