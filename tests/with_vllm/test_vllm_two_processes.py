"""Colocate vLLM on two processes, an engine in each: the same plans on both, each with its own rows of
groups that lie on both, under planned rollouts of 2, 3 and 7.

Not run: learned rollouts and resuming on two processes, and one engine on both
(``vllm_tensor_parallel_size=2``).
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_model as tiny
import torch

pytest.importorskip("vllm", reason="vLLM has an environment of its own: tests/with_vllm/run")

RANKS = (0, 1)
RATIO = "sampling/importance_sampling_ratio/mean"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process recorded."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(Path(__file__).with_name("two_processes.py")), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"straddling-{rank}.pt", weights_only=False) for rank in RANKS]


def same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[key], right[key]) for key in left)


def test_both_processes_make_the_same_plans_and_learn_the_same(results):
    first, second = results
    assert len(first["plans"]) == 2
    assert all(same(*plans) for plans in zip(first["plans"], second["plans"], strict=True))
    assert same(first["controller"], second["controller"])
    assert first["counts"] == second["counts"]
    tiny.assert_same_parameters(first["parameters"], second["parameters"])


def test_each_process_completes_its_own_rows_of_a_group_on_both(results):
    """The second group has rows 2 to 4, the third 5 to 11; the first process holds rows 0 to 5."""
    first, second = results
    assert torch.equal(first["scores"], second["scores"])
    groups = torch.split(first["scores"][:, 0], [2, 3, 7])
    expected = torch.cat([(g - g.mean()) / (g.std() + 1e-4) * 4 / len(g) for g in groups])
    assert expected.abs().max() > 0
    texts = [tiny.TEXTS[prompt] for prompt in np.repeat(first["plans"][-1]["prompt_ids"], [2, 3, 7])]
    for rank, result in zip(RANKS, (first, second), strict=True):
        (batch,) = result["batches"]
        slots = batch["gdro_slot"]
        assert sorted(slots.tolist()) == list(range(6 * rank, 6 * rank + 6))
        torch.testing.assert_close(batch["advantages"], expected[slots])
        assert result["texts"] == [texts[slot] for slot in slots]
        # graded as they were generated: a completion beside another prompt would have another's score
        scores = torch.tensor(tiny.real_reward(result["completions"]))
        torch.testing.assert_close(scores, first["scores"][slots, 0])
    ratios = [entry[RATIO] for entry in first["losses"] if RATIO in entry]
    print(f"importance ratios on two processes {ratios}")
    assert max(abs(ratio - 1) for ratio in ratios) < 0.02
