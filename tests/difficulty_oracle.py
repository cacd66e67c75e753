"""A slow, obvious classifier in plain Python, and random histories to hold the fast one to it."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from scipy.stats import beta

ESTIMATORS = ("any", "unbiased", "posterior")
NEAR = 1e-9


class Oracle:
    """One list of (correct, rollouts) a prompt; every rule of the classifier written out for one prompt."""

    def __init__(self, num_prompts, inner, window, hysteresis, estimator, k, confidence, exclude_extremes):
        self.edges = [0.0, *inner, 1.0]
        self.window, self.d, self.estimator, self.k = window, hysteresis, estimator, k
        self.confidence, self.exclude = confidence, exclude_extremes
        self.history = [[] for _ in range(num_prompts)]
        self.bin = [None] * num_prompts
        self.prior, self.calls = (1.0, 1.0), 0

    def counts(self, prompt):
        last = self.history[prompt][-self.window :]
        return sum(c for c, _ in last), sum(n for _, n in last)

    def estimate(self, prompt):
        last = self.history[prompt][-self.window :]
        c, n = self.counts(prompt)
        if self.estimator == "posterior":
            a, b = self.prior[0] + c, self.prior[1] + n - c
            log_miss = (
                math.lgamma(b + self.k) - math.lgamma(b) + math.lgamma(a + b) - math.lgamma(a + b + self.k)
            )
            return 1 - math.exp(log_miss)
        if not last:
            return 0.0
        if self.estimator == "any":
            return sum(c > 0 for c, _ in last) / len(last)
        if n >= self.k:
            return float(1 - Fraction(math.comb(n - c, self.k), math.comb(n, self.k)))
        return float(1 - (1 - Fraction(c, n)) ** self.k)

    def free(self, estimate):
        return max(b for b in range(len(self.edges) - 1) if estimate >= self.edges[b] - NEAR)

    def below(self, prompt, edge):
        c, n = self.counts(prompt)
        return beta.cdf(1 - (1 - edge) ** (1 / self.k), self.prior[0] + c, self.prior[1] + n - c)

    def may_rise(self, prompt, b):
        if self.estimator == "posterior":
            return 1 - self.below(prompt, self.edges[b]) > self.confidence
        return self.estimate(prompt) >= self.edges[b] + self.d - NEAR

    def may_fall(self, prompt, b):
        if self.estimator == "posterior":
            return self.below(prompt, self.edges[b + 1]) > self.confidence
        estimate = self.estimate(prompt)
        return estimate <= self.edges[b + 1] - self.d + NEAR and self.free(estimate) <= b

    def move(self, prompt):
        now, bins = self.bin[prompt], range(len(self.edges) - 1)
        if now is None:
            self.bin[prompt] = self.free(self.estimate(prompt))
            return
        higher = [b for b in bins if b > now and self.may_rise(prompt, b)]
        lower = [b for b in bins if b < now and self.may_fall(prompt, b)]
        assert not (higher and lower)
        self.bin[prompt] = max(higher) if higher else min(lower) if lower else now

    def fit(self):
        pairs = [self.counts(p) for p, h in enumerate(self.history) if h]
        if not pairs:
            return
        c, n = sum(c for c, _ in pairs), sum(n for _, n in pairs)
        mu, mean = (c + 0.5) / (n + 1), c / n
        room = n - sum(m * m for _, m in pairs) / n - (len(pairs) - 1)
        rho = 1 / 3
        if 0 < c < n and any(m > 1 for _, m in pairs) and len(pairs) > 1:
            observed = sum(m * (x / m - mean) ** 2 for x, m in pairs) / (mean * (1 - mean))
            rho = min(max((observed - (len(pairs) - 1)) / room, 1 / 1001), 0.5)
        self.prior = (mu * (1 / rho - 1), (1 - mu) * (1 / rho - 1))

    def observe(self, prompts, correct, rollouts):
        self.calls += 1
        touched = set()
        for prompt, c, n in zip(prompts, correct, rollouts, strict=True):
            if n > 0:
                self.history[prompt].append((c, n))
                touched.add(prompt)
        if self.calls in (1, 2, 4, 8) or self.calls % 16 == 0:
            self.fit()
        for prompt in touched:
            self.move(prompt)

    def reported_bin(self, prompt):
        c, n = self.counts(prompt)
        extreme = self.estimate(prompt) in (0.0, 1.0)
        if self.estimator == "posterior":
            extreme = c in (0, n)
        if self.exclude and len(self.history[prompt]) >= 2 and extreme:
            return -1
        return self.free(self.estimate(prompt)) if self.bin[prompt] is None else self.bin[prompt]


@st.composite
def scenarios(draw):
    inner = draw(
        st.sampled_from(
            [[], [0.5], [0.4, 0.75], [0.1, 0.2, 0.4, 0.6, 0.8, 0.9], [b / 10 for b in range(1, 10)]]
        )
    )
    narrowest = min(np.diff([0, *inner, 1]))
    setting = {
        "num_prompts": draw(st.integers(1, 4)),
        "window": draw(st.sampled_from([1, 2, 7, 8, 9, 10, 16, 20])),
        "hysteresis": draw(st.sampled_from([0.0, 0.03, 0.08])) * min(1.0, float(narrowest) / 0.1),
        "estimator": draw(st.sampled_from(ESTIMATORS)),
        "k": draw(st.sampled_from([1, 2, 8])),
        "confidence": draw(st.sampled_from([0.5, 0.8, 0.95])),
        "exclude_extremes": draw(st.booleans()),
    }
    entry = st.tuples(st.integers(0, setting["num_prompts"] - 1), st.integers(0, 5), st.integers(0, 5))
    calls = draw(st.lists(st.lists(entry, max_size=14), min_size=1, max_size=20))
    return inner, setting, [[(p, min(c, n), n) for p, c, n in call] for call in calls]
