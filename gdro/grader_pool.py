"""Grading processes that can be ended: a deadline for every pair, a warm spare for the one that is killed.

Started as modules, they need no importable main program: they work from a script on standard input, from a
notebook, from a thread and under torchrun. Linux only.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

from gdro.checks import real_number, whole_number

START_LIMIT = 300.0  # seconds until a new process must be ready; a busy machine may need them
PATIENCE = 30  # times its processor time that a pair may take by the clock, for the same reason


class _Worker:
    """A process, what it works on, and when it must be done."""

    def __init__(self):
        paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gdro.grader_worker"],  # -P: no module of the working folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,  # an interrupt from the keyboard is the caller's to handle
        )
        assert process.stdin is not None  # both are pipes, which Popen's type does not say
        assert process.stdout is not None
        self.process, self.stdin, self.stdout = process, process.stdin, process.stdout
        self.ready = False
        self.pair = None
        self.due = time.monotonic() + START_LIMIT

    def send(self, pair, deadline):
        self.stdin.write(json.dumps([*pair, deadline]).encode() + b"\n")
        self.stdin.flush()
        self.pair, self.due = pair, time.monotonic() + PATIENCE * deadline

    def receive(self):
        """The word that the process wrote, or None where it has ended."""
        line = self.stdout.readline()
        return json.loads(line) if line else None

    def end(self):
        self.process.kill()
        self.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # it died before it read what was sent
            self.stdin.close()
        return self.process.wait()


class GraderPool:
    """Compares pairs of answers by algebra in ``workers`` processes, one more standing by.

    workers: at work at one time. deadline: seconds of processor time for one pair, from when a process that
    is ready takes it up, so that neither starting one nor other work on the machine counts; a process that
    hangs without using the processor is ended after ``PATIENCE`` times as long. The processes start at the
    first call of ``grade`` and end with ``close`` or with this process. Threads may share a pool; it serves
    one call at a time.
    """

    def __init__(self, workers=2, deadline=0.7):
        self._size = whole_number("workers", workers, low=1)
        self._deadline = real_number("deadline", deadline, above=0)
        self._workers = []
        self._lock = threading.Lock()

    def grade(self, pairs, deadline=None):
        """The verdict on every (gold, answer), in order: a word of the worker, "timeout" or "crashed".

        pairs: any number of pairs of strings; equal ones are compared once. deadline: for this call only.
        Raises RuntimeError where a process cannot be started.
        """
        deadline = self._deadline if deadline is None else real_number("deadline", deadline, above=0)
        verdicts = dict.fromkeys(tuple(pair) for pair in pairs)
        waiting = deque(verdicts)
        with self._lock:
            try:
                self._fill()
                while waiting or self._busy():
                    self._hand_out(waiting, deadline)
                    verdicts.update(self._collect())
                    self._fill()
            finally:  # what is still at work was interrupted; its late answer must not reach a later call
                for worker in self._busy():
                    self._drop(worker)
        return [verdicts[tuple(pair)] for pair in pairs]

    def close(self):
        """End all processes; a later ``grade`` starts new ones."""
        with self._lock:
            self._drop_all()

    def _busy(self):
        return [worker for worker in self._workers if worker.pair is not None]

    def _fill(self):
        while len(self._workers) < self._size + 1:
            self._workers.append(_Worker())

    def _drop(self, worker):
        """End ``worker``; its exit status, negative where a signal had ended it."""
        self._workers.remove(worker)
        return worker.end()

    def _drop_all(self):
        for worker in list(self._workers):
            self._drop(worker)

    def _hand_out(self, waiting, deadline):
        """Give waiting pairs to processes that are ready, at most ``workers`` at one time."""
        for worker in [w for w in self._workers if w.ready and w.pair is None]:
            if not waiting or len(self._busy()) >= self._size:
                return
            try:
                worker.send(waiting[0], deadline)
                waiting.popleft()
            except BrokenPipeError:  # it died idle
                self._drop(worker)

    def _collect(self):
        """Wait until a process answers, ends or is due; {pair: verdict} of those that are done with."""
        done = {}
        with selectors.DefaultSelector() as selector:
            active = [w for w in self._workers if w.pair is not None or not w.ready]
            for worker in active:
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            wait = min((w.due for w in active), default=0) - time.monotonic()
            answered = [key.data for key, _ in selector.select(max(wait, 0))]
        for worker in answered:
            word = worker.receive()
            pair, worker.pair = worker.pair, None
            if word is None:
                word = self._end_of(worker)
            if pair is not None:
                done[pair] = word
            worker.ready = True
        for worker in active:
            if worker not in answered and worker.due <= time.monotonic():
                if worker.pair is not None:
                    done[worker.pair] = "timeout"
                self._end_of(worker)
        return done

    def _end_of(self, worker):
        """The verdict that the end of ``worker`` means; RuntimeError where it had not been ready."""
        code = self._drop(worker)
        if not worker.ready:
            self._drop_all()
            raise RuntimeError(
                f"a grading process was not ready to work (exit status {code}, limit {START_LIMIT:.0f} s); "
                f"`{sys.executable} -m gdro.grader_worker` shows why: is math-verify installed?"
            )
        return "timeout" if code == -signal.SIGPROF else "crashed"
