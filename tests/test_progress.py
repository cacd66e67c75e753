"""Progress: lines where a log is read, curves in place where a person looks on, nothing where a test does."""

import sys
import types

import pytest
from run_store import bin_rows, step_row

from gdro import progress
from gdro.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when told."""
    at = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: at.now)
    return at


@pytest.fixture
def shown(monkeypatch):
    """What a kernel would show: [kind, content], a new entry or an update of one."""
    from IPython import display

    events = []

    class Handle:
        def __init__(self, kind):
            self.kind = kind

        def update(self, content, **_):
            events.append((f"{self.kind} again", content))

    def fake(content, **_):
        kind = "line" if isinstance(content, dict) else "curves"
        events.append((kind, content))
        return Handle(kind)

    monkeypatch.setattr(display, "display", fake)
    monkeypatch.setattr("IPython.display.display", fake)
    return events


def kinds(events):
    return [kind for kind, _ in events]


@pytest.mark.parametrize(
    ("kernel", "variables", "mode"),
    [
        (False, {}, "lines"),
        (True, {}, "live"),
        (True, {progress.TESTED: "9.0"}, "none"),
        (False, {progress.TESTED: "9.0"}, "lines"),
        (True, {progress.TESTED: "9.0", progress.VARIABLE: "lines"}, "lines"),
        (True, {progress.VARIABLE: "none"}, "none"),
    ],
)
def test_the_mode_fits_the_place(monkeypatch, kernel, variables, mode):
    for name in (progress.TESTED, progress.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    if kernel:
        monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert progress.default_mode() == mode


def test_an_unknown_mode_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="'loud' is not a progress mode: use one of live, lines, none"):
        Progress("x", 3, "loud")
    monkeypatch.setenv(progress.VARIABLE, "loud")
    with pytest.raises(ValueError, match="GDRO_PROGRESS='loud'"):
        progress.default_mode()


def train(shown, clock, steps=6, seconds=2.0, mode="live"):
    with_bar = Progress("train", steps, mode)
    for step in range(1, steps + 1):
        clock.now += seconds
        with_bar.update(step)
        with_bar.record(step_row(step), bin_rows(step // 2) if step % 2 == 0 else ())
    with_bar.close("done")


def test_curves_are_drawn_again_in_place_and_a_last_time_at_the_end(shown, clock):
    train(shown, clock)
    drawn = [kind for kind in kinds(shown) if kind.startswith("curves")]
    # every five seconds at most: after 6 s and 12 s, and at the end
    assert drawn == ["curves", "curves again", "curves again"]
    assert kinds(shown)[-2:] == ["curves again", "line again"]
    assert shown[-1][1] == {"text/plain": "train: done, done"}


def test_slow_drawing_is_given_rest(shown, clock, monkeypatch):
    from gdro import figures

    original = figures.run_curves

    def slow(*frames):
        clock.now += 3.0
        return original(*frames)

    monkeypatch.setattr(figures, "run_curves", slow)
    train(shown, clock, steps=12)
    # drawn after 6 s for 3 s, then not for 30 s, then at the end
    assert [kind for kind in kinds(shown) if kind.startswith("curves")] == ["curves", "curves again"]


def test_the_last_curves_show_all_of_the_run_and_no_clock(shown, clock):
    for seconds in (2.0, 0.01):
        train(shown, clock, seconds=seconds)
    images = [content.data for kind, content in shown if kind.startswith("curves")]
    assert images[2] == images[-1]
    assert images[0] != images[2]


@pytest.mark.parametrize(("mode", "lines"), [("lines", 4), ("none", 0)])
def test_elsewhere_there_are_lines_or_nothing(shown, clock, capsys, mode, lines):
    train(shown, clock, mode=mode)
    assert shown == []
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_without_steps_there_are_no_curves(shown, clock):
    Progress("evaluate", 10, "live").close("0.5")
    assert kinds(shown) == ["line"]
