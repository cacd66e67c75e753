"""Two processes on CPU: equal plans on both, advantages of groups that lie on both, TRL's numbers, exact
resuming."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_model as tiny
import torch
from distributed_worker import HARD, mostly_flat

RANKS = (0, 1)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Function (run, rank) -> what that process recorded."""
    folder = tmp_path_factory.mktemp("two")
    worker = Path(__file__).with_name("distributed_worker.py")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        str(worker),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(folder)], env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return lambda run, rank: torch.load(folder / f"{run}-{rank}.pt", weights_only=False)


def same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("run", ["off", "uniform"])
def test_a_uniform_plan_is_grpo_on_two_processes(results, run):
    for rank in RANKS:
        tiny.assert_same_parameters(results(run, rank)["parameters"], results("trl", rank)["parameters"])
        for own, other in zip(results(run, rank)["losses"], results("trl", rank)["losses"], strict=True):
            assert {key: own[key] for key in other} == other


@pytest.mark.parametrize("run", ["straddling", "learning"])
def test_both_processes_make_the_same_plans_and_learn_the_same(results, run):
    first, second = (results(run, rank) for rank in RANKS)
    assert len(first["plans"]) == {"straddling": 4, "learning": 6}[run]
    assert all(same(*plans) for plans in zip(first["plans"], second["plans"], strict=True))
    assert same(first["controller"], second["controller"])
    assert first["counts"] == second["counts"]
    tiny.assert_same_parameters(first["parameters"], second["parameters"])


def test_rollouts_and_weights_were_learned_at_all(results):
    plans = results("learning", 0)["plans"]
    assert any(np.ptp(plan["rollouts"]) > 0 for plan in plans)
    assert any(np.ptp(plan["weights"]) > 0 for plan in plans)
    assert {int(plan["rollouts"].sum()) for plan in plans} == {12}


def test_a_group_on_both_processes_has_the_advantages_of_one_process(results):
    """The second group has rows 2 to 4, the third 5 to 11; the first process holds rows 0 to 5."""
    first, second = (results("straddling", rank) for rank in RANKS)
    assert torch.equal(first["scores"], second["scores"])
    groups = torch.split(first["scores"][:, 0], [2, 3, 7])
    expected = torch.cat([(g - g.mean()) / (g.std() + 1e-4) * 4 / len(g) for g in groups])
    found = torch.full((12,), torch.nan)
    for rank, result in zip(RANKS, (first, second), strict=True):
        (batch,) = result["batches"]
        assert sorted(batch["gdro_slot"].tolist()) == list(range(6 * rank, 6 * rank + 6))
        found[batch["gdro_slot"]] = batch["advantages"]
        prompts = np.repeat(result["plans"][-1]["prompt_ids"], [2, 3, 7])[batch["gdro_slot"]]
        assert result["texts"] == [tiny.TEXTS[prompt] for prompt in prompts]
    torch.testing.assert_close(found, expected)


def test_resuming_inside_a_cycle_on_two_processes_equals_never_having_stopped(results):
    for rank in RANKS:
        whole, resumed = results("learning", rank), results("resumed", rank)
        tiny.assert_same_parameters(whole["parameters"], resumed["parameters"])
        assert same(whole["controller"], resumed["controller"])
        assert whole["losses"] == resumed["losses"]
        assert whole["counts"] == resumed["counts"]
        assert all(same(*plans) for plans in zip(whole["plans"][-1:], resumed["plans"], strict=True))


def test_the_filter_refills_groups_across_processes(results):
    """Twelve rows, three groups of four: the second lies on both processes."""
    both = [results("filtered", rank) for rank in RANKS]
    assert both[0]["counts"] == both[1]["counts"]
    (plan,) = both[0]["plans"]
    assert len(plan["prompt_ids"]) > 3
    assert both[0]["counts"][0] == 4 * len(plan["prompt_ids"])
    rows = {}
    for result in both:
        (batch,) = result["batches"]
        for at, slot in enumerate(batch["gdro_slot"].tolist()):
            rows[slot] = (result["texts"][at], result["completions"][at], batch["advantages"][at])
    assert sorted(rows) == list(range(12))
    for first in range(0, 12, 4):
        texts, completions, found = zip(*(rows[slot] for slot in range(first, first + 4)), strict=True)
        assert len(set(texts)) == 1
        assert not HARD & set(texts)
        scores = torch.tensor(mostly_flat(texts, completions), dtype=torch.float32)
        assert scores.std() > 0
        expected = (scores - scores.mean()) / (scores.std() + 1e-4)
        torch.testing.assert_close(torch.stack(found), expected)
    tiny.assert_same_parameters(both[0]["parameters"], both[1]["parameters"])
