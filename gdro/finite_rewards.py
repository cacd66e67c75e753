"""What a reward function returns is refused, by its name, where it is no list of numbers, and said where it
is long in coming."""

import contextlib
import functools
import logging
import math
import threading

logger = logging.getLogger(__name__)

PATIENCE = 300.0  # seconds that a reward function may take before a warning names it
LARGEST = 1e16  # of a reward's absolute value: beyond it, variances of a batch leave single precision


def finite_or_none(function, name):
    """``function`` with every reward refused that is no finite number; TRL would take NaN for None.

    Numbers beyond ``LARGEST`` are refused too: TRL keeps rewards in single precision, where they become
    infinite. After ``PATIENCE`` seconds a warning names the function.
    """
    from trl.trainer.utils import is_async_callable  # slow to import, and only needed here

    if is_async_callable(function):

        @functools.wraps(function)
        async def checked(*args, **kwargs):
            with named_if_slow(name):
                values = await function(*args, **kwargs)
            return checked_rewards(values, name)

    else:

        @functools.wraps(function)
        def checked(*args, **kwargs):
            with named_if_slow(name):
                values = function(*args, **kwargs)
            return checked_rewards(values, name)

    return checked


def checked_rewards(values, name):
    """``values`` as a list; ``TypeError`` or ``ValueError`` naming the function where they are no rewards.

    >>> checked_rewards((1, None), "right")
    [1, None]
    """
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        raise TypeError(
            f"the reward function {name!r} returned {type(values).__name__} {values!r:.60}; return a list "
            "with a number, or None, for each completion"
        )
    values = list(values)
    for at, value in enumerate(values):
        if value is not None and not _is_finite(value):
            raise ValueError(
                f"the reward function {name!r} returned {value!r} for completion {at}; return a finite "
                f"number, or None where it does not apply; the largest is {LARGEST:.0e}"
            )
    return values


@contextlib.contextmanager
def named_if_slow(name):
    """Warn, naming the reward function, where the block takes longer than ``PATIENCE``; it goes on."""
    timer = threading.Timer(PATIENCE, _warn, (name, PATIENCE))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _warn(name, seconds):
    logger.warning(
        "the reward function %r has taken more than %.0f s so far; an interrupt ends the run, which can be "
        "resumed from its last checkpoint",
        name,
        seconds,
    )


def _is_finite(value):
    try:
        return math.isfinite(value) and abs(value) <= LARGEST
    except (TypeError, OverflowError):
        return False
