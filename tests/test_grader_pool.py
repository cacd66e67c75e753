"""Grading processes: what is hostile costs itself only, wherever the grading is asked from."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from gdro import grader_pool, rewards

EASY = (r"2\sqrt{2}", r"\sqrt{8}")
WRONG = (r"2\sqrt{2}", r"\sqrt{7}")
ENDLESS = ("3", "(9^9)!")  # in C code, where no handler of a signal runs
SCRIPT = r"""
import os, sys
from gdro.rewards import math_reward
right = math_reward(completions=[r"\boxed{\sqrt{8}}"], answer=[r"2\sqrt{2}"])
child = os.fork()
again = math_reward(completions=[r"\boxed{\sqrt{8}}", r"\boxed{\sqrt{7}}"], answer=[r"2\sqrt{2}"] * 2)
if child == 0:
    os._exit(again != [1.0, 0.0])
assert os.waitpid(child, 0)[1] == 0
print(right, again, "torch" in sys.modules, "sympy" in sys.modules)
"""


@pytest.fixture(scope="module")
def pool():
    pool = grader_pool.GraderPool(workers=1)
    yield pool
    pool.close()


def numbers(pool):
    """The operating system's numbers of the processes of a pool."""
    return [worker.process.pid for worker in pool._workers]


def test_pairs_come_back_in_order_and_equal_ones_are_compared_once(pool):
    assert pool.grade([EASY, WRONG, EASY, ("x", "1+"), (r"\mho(", "x")]) == [
        "correct",
        "wrong",
        "correct",
        "unparsable",
        "bad_gold",
    ]
    assert pool.grade([]) == []
    assert pool.grade([ENDLESS] * 50, deadline=0.2) == ["timeout"] * 50


def test_an_endless_pair_is_ended_and_a_spare_takes_over(pool):
    pool.grade([EASY])
    while not all(worker.ready for worker in pool._workers):
        pool._collect()
    before = numbers(pool)
    assert pool.grade([ENDLESS, EASY]) == ["timeout", "correct"]
    assert len(numbers(pool)) == 2
    assert len(set(before) & set(numbers(pool))) == 1
    assert pool._workers[0].pair is None
    assert pool._workers[0].ready  # the spare was there, while its own replacement is still to start


def test_starting_does_not_count_against_the_deadline():
    fresh = grader_pool.GraderPool(workers=1, deadline=0.2)  # to start takes well over a second
    assert fresh.grade([EASY]) == ["correct"]
    fresh.close()
    assert fresh.grade([WRONG]) == ["wrong"]  # a closed pool opens again
    fresh.close()


def test_a_process_that_died_is_replaced(pool):
    pool.grade([EASY])
    for worker in [w for w in pool._workers if w.ready]:  # the death of one that has yet to start is an error
        os.kill(worker.process.pid, signal.SIGKILL)
    # each process may have been handed its pair before its end was seen: lost, never misjudged
    for verdict, right in zip(pool.grade([EASY, WRONG]), ["correct", "wrong"], strict=True):
        assert verdict in (right, "crashed")
    assert pool.grade([EASY, WRONG]) == ["correct", "wrong"]


def test_an_interrupted_call_leaves_nothing_to_the_next(pool, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    pool.grade([EASY])
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_collect", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.grade([EASY])
    assert pool.grade([WRONG]) == ["wrong"]


def test_threads_share_a_pool(pool):
    def grade(i):
        found[i] = pool.grade([EASY, WRONG] if i % 2 else [WRONG, EASY])

    found = [None] * 6
    threads = [threading.Thread(target=grade, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["wrong", "correct"], ["correct", "wrong"]] * 3


def test_a_process_that_cannot_start_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match=r"exit status 1.*math-verify"):
        grader_pool.GraderPool().grade([EASY])


@pytest.mark.parametrize("settings", [{"workers": 0}, {"deadline": 0}])
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        grader_pool.GraderPool(**settings)


def test_from_a_script_on_standard_input_and_its_child():
    done = subprocess.run([sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[1.0] [1.0, 0.0] False False\n", "")


def test_a_process_imports_neither_torch_nor_trl():
    code = (
        "import gdro.grader_worker, sys; print(*{'torch', 'trl', 'transformers', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"\n"


def test_the_processes_of_a_run_share_the_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    made = []
    for ranks in ("1", "4", "64"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        made.append(rewards._pool.__wrapped__(0)._size)
    assert made == [8, 4, 1]
