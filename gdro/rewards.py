"""Graders: functions of completions and answers that return rewards, in TRL's form."""

import re

_TINY_ANSWER = re.compile(r"#(-?[0-9]{1,9})\Z")


def tiny_reward(completions, answer, **kwargs) -> list[float]:
    """1.0 where the completion ends in ``#`` and the right integer, else 0.0.

    Nothing may follow the integer. completions: R strings. answer: R decimal strings. Further keyword
    arguments (the data set's other columns) are ignored.

    >>> tiny_reward(["ve7f5#10", "n#9", "n#10b"], ["10", "10", "10"])
    [1.0, 0.0, 0.0]
    """
    found = [_TINY_ANSWER.search(text) for text in completions]
    return [float(m is not None and int(m.group(1)) == int(a)) for m, a in zip(found, answer, strict=True)]
