"""Progress that fits its place: a line and curves that update in a notebook, lines now and then in a log."""

import os
import sys
import time
import warnings
from contextlib import contextmanager

VARIABLE = "GDRO_PROGRESS"  # set by the notebook runner for the kernels it starts
MODES = ("live", "lines", "none")
TESTED = "PYTEST_VERSION"  # pytest sets it, and the kernels that nbval starts have it
REST = 10  # the curves take at most one part in this many of the time


def default_mode() -> str:
    """The mode of ``GDRO_PROGRESS`` where set, else "live" in a notebook kernel and "lines" elsewhere.

    In a kernel that a test started (nbval) it is "none": what is shown there must be the same every time.
    """
    mode = os.environ.get(VARIABLE)
    if mode is None:
        if "ipykernel" not in sys.modules:
            return "lines"
        return "none" if TESTED in os.environ else "live"
    if mode not in MODES:
        raise ValueError(f"{VARIABLE}={mode!r} is not a progress mode: use one of {', '.join(MODES)}")
    return mode


@contextmanager
def calm():
    """Without three warnings of other libraries that nobody can act on, for the length of a block.

    tqdm misses ipywidgets in a kernel, and TRL uses two names that transformers has deprecated.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        warnings.filterwarnings("ignore", "`(is_)?gradient_checkpointing", FutureWarning)
        yield


@contextmanager
def no_bars():
    """Without transformers' progress bars, for the length of a block; the run has its own."""
    from transformers.utils import logging  # slow to import, and only needed here

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def clock(seconds: float) -> str:
    """Minutes and seconds, hours where there are any.

    >>> clock(75), clock(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """Says how far a piece of work is: ``update`` as often as one likes, shown at most every ``every``
    seconds.

    In mode "live" the last state stays without times, so that a notebook's output is the same whenever it is
    made. A training also gives its steps to ``record``, and sees its curves drawn in place.
    """

    def __init__(
        self, label: str, total: int, mode: str | None = None, every: float = 5.0, unit: str = "step"
    ):
        self.label, self.total, self.unit, self.every = label, total, unit, every
        self.mode = default_mode() if mode is None else mode
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is not a progress mode: use one of {', '.join(MODES)}")
        self._first: tuple[int, float] | None = None  # how far the first update was, and when
        self._steps: list[dict] = []
        self._bins: list[dict] = []
        self._start, self._shown, self._display = time.monotonic(), -float("inf"), None
        self._curves, self._drawn, self._took = None, time.monotonic(), 0.0

    def update(self, done: int, note: str = "") -> None:
        """Show ``done`` of ``total`` with the time left, at the pace since the first update."""
        now = time.monotonic()
        self._first = self._first or (done, now)
        if now - self._shown >= (0.5 if self.mode == "live" else self.every) or done >= self.total:
            self._shown = now
            self._show(self._text(done, note, self._left(done, now, *self._first)))

    def record(self, step_row: dict, bin_rows=()) -> None:
        """Take in one step of a training, as the run store has it; in mode "live" draw the curves so far.

        They are drawn again, in place, once ``every`` seconds have passed, more where drawing is slow.
        """
        if self.mode != "live":
            return
        self._steps.append(dict(step_row))
        self._bins.extend({"step": step_row["step"], **row} for row in bin_rows)
        if self._bins and time.monotonic() - self._drawn >= max(self.every, REST * self._took):
            self._draw()

    def say(self, text: str) -> None:
        """Show one remark about the work."""
        self._show(f"{self.label}: {text}")

    def close(self, note: str = "") -> None:
        """Show the end, with the last curves where there are any; in mode "lines" with the time it took."""
        if self._bins:
            self._draw()
        took = "" if self.mode == "live" else f" in {clock(time.monotonic() - self._start)}"
        self._show(f"{self.label}: done{took}" + (f", {note}" if note else ""))

    def _draw(self):
        import pandas as pd
        from IPython.display import display  # only a kernel shows it

        from gdro import figures, gallery

        start = time.monotonic()
        image = gallery.show(figures.run_curves(pd.DataFrame(self._steps), pd.DataFrame(self._bins)))
        if self._curves is None:
            self._curves = display(image, display_id=True)
        else:
            self._curves.update(image)
        self._drawn = time.monotonic()
        self._took = self._drawn - start

    def _left(self, done, now, first, at):
        if done <= first or done >= self.total:
            return ""
        return f", {clock((now - at) / (done - first) * (self.total - done))} left"

    def _text(self, done, note, left):
        return f"{self.label}: {self.unit} {done}/{self.total}" + (f", {note}" if note else "") + left

    def _show(self, text):
        if self.mode == "lines":
            print(text, flush=True)
        elif self.mode == "live":
            from IPython.display import display  # only a kernel shows it

            if self._display is None:
                self._display = display({"text/plain": text}, raw=True, display_id=True)
            else:
                self._display.update({"text/plain": text}, raw=True)
