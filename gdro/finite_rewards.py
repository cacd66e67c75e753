"""Refuses rewards that are no numbers, by the name of the function that returned them."""

import functools
import math

from trl.trainer.utils import is_async_callable


def finite_or_none(function, name):
    """``function`` with every reward refused that is no finite number; TRL would take NaN for None."""

    def check(values):
        values = list(values)
        for at, value in enumerate(values):
            if value is not None and not _is_finite(value):
                raise ValueError(
                    f"the reward function {name!r} returned {value!r} for completion {at}; "
                    "return a finite number, or None where it does not apply"
                )
        return values

    if is_async_callable(function):

        @functools.wraps(function)
        async def checked(*args, **kwargs):
            return check(await function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def checked(*args, **kwargs):
            return check(function(*args, **kwargs))

    return checked


def _is_finite(value):
    try:
        return math.isfinite(value)
    except TypeError:
        return False
