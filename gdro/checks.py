"""Checks of what callers hand in: one place that names the value, the limit and the remedy.

Every function returns the checked array or raises ``ValueError`` or ``TypeError``; none changes its argument.
"""

import contextlib
import json
import re

import numpy as np


def integer_array(name, values, *, low=None, high=None, size=None, remedy="") -> np.ndarray:
    """Return ``values`` as an (n,) int64 array with entries in [low, high], both ends allowed.

    Raises ``TypeError`` for anything that is not integers (booleans and whole floats too: they are mostly a
    mistake of column) and ``ValueError`` naming the first value outside the limits.

    >>> integer_array("bins", [0, 2], low=-1, high=2)
    array([0, 2])
    """
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must be integers, got dtype {array.dtype}; convert with .astype(int) if they are"
        )
    _check_shape(name, array, size)
    if array.size:
        if low is not None and (least := array.min()) < low:
            raise _outside(name, array, least, f"below the limit {low}", remedy)
        if high is not None and (most := array.max()) > high:
            raise _outside(name, array, most, f"above the limit {high}", remedy)
    return array.astype(np.int64, copy=False)


def _outside(name, array, value, words, remedy):
    at = int(np.argmax(array == value))
    tail = f"; {remedy}" if remedy else ""
    return ValueError(f"{name}[{at}] is {value}, {words}{tail}")


def finite_array(name, values, *, size=None, remedy="drop such entries before the call") -> np.ndarray:
    """Return ``values`` as an (n,) float64 array without NaN or infinity.

    >>> finite_array("losses", [0, 0.5])
    array([0. , 0.5])
    """
    array = float_array(name, values, size=size)
    if not np.isfinite(array).all():
        at = int(np.argmin(np.isfinite(array)))
        raise ValueError(f"{name}[{at}] is {array[at]}, not a finite number; {remedy}")
    return array


def float_array(name, values, *, size=None) -> np.ndarray:
    """Return ``values`` as an (n,) float64 array; NaN and infinity pass.

    >>> float_array("rewards", [1, float("nan")])
    array([ 1., nan])
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be real numbers, got dtype {array.dtype}")
    _check_shape(name, array, size)
    return array.astype(np.float64, copy=False)


def _check_shape(name, array, size):
    if array.ndim != 1 or (size is not None and array.size != size):
        wanted = "one axis" if size is None else f"shape ({size},)"
        raise ValueError(f"{name} must have {wanted}, got shape {array.shape}; give one value for each entry")


def whole_number(name, value, *, low=None, high=None) -> int:
    """Return ``value`` as an int in [low, high]; a bool or a float is refused.

    >>> whole_number("window", 100, low=1)
    100
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    _check_limits(name, value, low, high)
    return int(value)


def real_number(name, value, *, low=None, high=None, above=None, below=None) -> float:
    """Return ``value`` as a finite float in [low, high], and in (above, below) where the ends are not
    allowed.

    >>> real_number("ema_rate", 0.12, above=0, high=1)
    0.12
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not np.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    _check_limits(name, value, low, high)
    if above is not None and not value > above:
        raise ValueError(f"{name} must be above {above}, got {value}")
    if below is not None and not value < below:
        raise ValueError(f"{name} must be below {below}, got {value}")
    return float(value)


def _check_limits(name, value, low, high):
    if low is not None and value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    if high is not None and value > high:
        raise ValueError(f"{name} must be at most {high}, got {value}")


def boolean(name, value) -> bool:
    """Return ``value`` where it is True or False; 0, 1 and words are refused, which mostly come of a
    misreading.

    >>> boolean("exclude_extremes", False)
    False
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def generator(name, value):
    """Return ``value`` where it is a numpy Generator; a seed is refused, as it would start again at each
    call."""
    if not isinstance(value, np.random.Generator):
        raise TypeError(
            f"{name} must be a numpy Generator, got {value!r}; make one with numpy.random.default_rng(seed) "
            "and keep it"
        )
    return value


def one_of(name, value, known):
    """Return ``value`` where it is one of ``known``, else raise naming the known ones.

    >>> one_of("signal", "error", ("error", "spread"))
    'error'
    """
    if value not in known:
        raise ValueError(f"unknown {name} {value!r}; the known ones are {', '.join(map(repr, known))}")
    return value


@contextlib.contextmanager
def named(**fields):
    """Errors of a part's arguments, told by the names of the ``fields`` that gave them their values.

    >>> with named(window="visits"):
    ...     whole_number("window", 0, low=1)
    Traceback (most recent call last):
    ValueError: visits must be at least 1, got 0
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        argument = rf"\b({'|'.join(fields)})\b"
        told = re.sub(argument, lambda found: fields[found[0]], str(error), count=1)
        raise type(error)(told) from error


def check_settings(owner, own, state):
    """Raise ``ValueError`` unless ``state["settings"]`` (JSON) equals the dictionary ``own``, naming what
    differs.

    >>> check_settings("PromptGDRO", {"num_bins": 3}, {"settings": '{"num_bins": 3}'})
    """
    if "settings" not in state:
        raise ValueError(f"this is not a state of {owner}: it has no 'settings' among {sorted(state)}")
    try:
        saved = json.loads(str(state["settings"]))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"the settings in the state of {owner} are not JSON ({error}): the file was damaged"
        ) from error
    if not isinstance(saved, dict):
        raise ValueError(
            f"the settings in the state of {owner} are {saved!r}, not named: the file was damaged"
        )
    own = json.loads(json.dumps(own))
    if saved != own:
        keys = [key for key in sorted({*saved, *own}) if saved.get(key) != own.get(key)]
        both = "; ".join(f"{key}: saved {saved.get(key)!r}, here {own.get(key)!r}" for key in keys)
        raise ValueError(
            f"the state of {owner} was saved under other settings ({both}); "
            "rebuild it with the saved settings, or start without this state"
        )


def state_array(owner, state, key, *, shape, kind) -> np.ndarray:
    """Return a copy of the array ``state[key]``; a missing one, another shape or dtype kind is refused."""
    if key not in state:
        raise ValueError(f"the state of {owner} lacks {key!r}; it has {sorted(state)}: the file is not whole")
    array = np.array(state[key])
    if array.shape != shape or array.dtype.kind not in kind:
        raise ValueError(
            f"the state of {owner} has {key!r} of shape {array.shape} and dtype {array.dtype}, wanted "
            f"shape {shape} and a dtype of kind {kind!r}: the file was damaged or saved by something else"
        )
    return array
