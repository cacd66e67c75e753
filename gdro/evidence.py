"""What the runs say to the questions of `gdro.questions`: one number a run, then arms paired by seed.

Frames in, frames out. Arms are compared seed by seed, because a seed's prompts, their order and its initial
weights are the same for every arm; where held-out prompts are known they are paired too, and intervals speak
of other seeds and other prompts.
"""

import numpy as np
import pandas as pd
from scipy import optimize, stats

from gdro import checks, statistics
from gdro.dynamics import RUN
from gdro.questions import MAIN_ARMS, QUESTIONS
from gdro.tables import final_step, label

BASELINE = "grpo"
_NOTHING = "0"  # what `contrasts` are measured from
COLUMNS = ["arm", "estimate", "low", "high", "seeds", "p", "p_holm"]


def scores(evaluations: pd.DataFrame, by=()) -> pd.DataFrame:
    """mean@k and pass@k of each run at its last evaluated step, over all its prompts or within each of
    ``by``.

    Columns: scale, arm, seed, ``by``, mean, passed (both in [0, 1]), prompts.
    """
    found = by_prompt(evaluations).groupby([*RUN, *by], sort=False)
    return found.agg(mean=("mean", "mean"), passed=("passed", "mean"), prompts=("mean", "size")).reset_index()


def by_prompt(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Rows of each run's last evaluated step with "mean" (c / k) and "passed" (1.0 where any of the k is
    right)."""
    last = final_step(evaluations)
    return last.assign(mean=last["correct"] / last["k"], passed=(last["correct"] > 0).astype(float))


def with_initial(evaluations: pd.DataFrame) -> pd.DataFrame:
    """The rows with a column "initial": how many of its k samples the base model had right (step 0).

    Step 0 is the same for all arms of a scale and seed. A group of many initial successes holds lucky prompts
    and one of few unlucky ones, for every arm alike: compare arms within a group, not a group with its start.
    """
    by = ["scale", "seed", "prompt_id"]
    start = evaluations[evaluations["step"] == 0].drop_duplicates(by)
    initial = start[[*by, "correct"]].rename(columns={"correct": "initial"})
    return evaluations.merge(initial, on=by, how="left", validate="many_to_one")


def lowest_suite(evaluations: pd.DataFrame, against: str = BASELINE) -> pd.DataFrame:
    """`by_prompt` of the suite where ``against`` has the lowest mean@k over its seeds, scale by scale.

    Scales without runs of ``against`` are left out.
    """
    found = scores(evaluations, ["suite"])
    means = found[found["arm"] == against].groupby(["scale", "suite"], sort=False)["mean"].mean()
    worst = means.groupby(level="scale", sort=False).idxmin().map(lambda names: names[1])
    rows = by_prompt(evaluations)
    return rows[rows["suite"] == rows["scale"].map(worst)].reset_index(drop=True)


def paired(
    values: pd.DataFrame, value: str, against: str = BASELINE, by=(), prompts: str = "shared"
) -> pd.DataFrame:
    """Each arm minus ``against``, seed by seed, in the seeds that both have.

    Args: ``values`` one row a run (and one of each ``by``), or one a run and prompt where it has a column
    prompt_id, with the column ``value``; ``prompts`` as `gdro.statistics.bootstrap_interval`: "nested" where
    seeds have prompts of their own. Columns: scale, ``by``, arm, estimate (mean over seeds of the mean over
    prompts), low, high (95 % bootstrap over seeds, and prompts), seeds, p (two-sided paired t test over
    seeds), p_holm (Holm 1979 over the arms of a scale and ``by``). One seed has no interval and no p (NaN);
    differences that are all equal have no p either, and no difference at all has p = 1.
    Raises ``ValueError`` where seeds that are said to share their prompts do not.
    """
    keys = ["scale", *by]
    rows = []
    for names, seeds, group in _differences(values, value, against, keys):
        found = [[*names, arm, *row] for arm, row in _summaries(group, seeds, prompts).items() if row[-2]]
        known = [row for row in found if not np.isnan(row[-1])]
        adjusted = iter(statistics.holm([row[-1] for row in known])) if known else iter(())
        rows += [[*row, float("nan") if np.isnan(row[-1]) else next(adjusted)] for row in found]
    return pd.DataFrame(rows, columns=[*keys, *COLUMNS])


def differences(evaluations: pd.DataFrame, against: str = BASELINE) -> pd.DataFrame:
    """Each arm minus ``against`` over all suites at each run's last evaluated step, in mean@k and pass@k.

    Columns: scale, arm, metric ("mean" or "pass"), then those of `paired`. Raises ``ValueError`` for a scale
    that has no run of ``against``.
    """
    for scale, part in evaluations.groupby("scale", sort=False):
        if against not in set(part["arm"]):
            has = ", ".join(part["arm"].unique())
            raise ValueError(f"scale {scale} has no run of {against}: it has {has}")
    rows = by_prompt(evaluations)
    measures = {"mean": "mean", "pass": "passed"}
    parts = [paired(rows, value, against).assign(metric=metric) for metric, value in measures.items()]
    table = pd.concat(parts).sort_index(kind="stable", ignore_index=True)  # both measures of an arm together
    return table[["scale", "arm", "metric", *COLUMNS[1:]]]


def by_seed(values: pd.DataFrame, value: str, against: str = BASELINE) -> pd.DataFrame:
    """The differences that `paired` sums up, one a seed. Columns: scale, arm, seed, difference."""
    rows = [
        [*names, arm, seed, row.mean()]
        for names, seeds, group in _differences(values, value, against, ["scale"])
        for arm, own in group.items()
        for seed, row in zip(seeds, _known(own), strict=True)
        if row.size
    ]
    return pd.DataFrame(rows, columns=["scale", "arm", "seed", "difference"])


def _differences(values, value, against, keys):
    """Yield (names of the ``keys``, the S seeds, {arm: its differences (S, P)}) for each group that has
    ``against``.

    P counts the prompts of the arm or of ``against``; NaN where one of the two lacks a seed or prompt.
    """
    prompts = pd.factorize(values["prompt_id"])[0] if _units(values) else 0
    named = {"arm": values["arm"].astype("category"), "seed": values["seed"], "value": values[value]}
    slim = pd.DataFrame(named).assign(prompt=prompts)
    for names, part in slim.groupby([values[key] for key in keys], sort=False):
        (arm, arms), (seed, seeds), (prompt, _) = (
            pd.factorize(part[name], sort=name == "seed") for name in ("arm", "seed", "prompt")
        )
        if against not in arms:
            continue
        shape = len(arms), len(seeds), prompt.max() + 1
        cells = np.ravel_multi_index((arm, seed, prompt), shape)
        rows = np.bincount(cells, minlength=np.prod(shape)).reshape(shape)
        if rows.max() > 1:
            raise ValueError(f"{'/'.join(map(str, names))} has several rows of one run and prompt: give one")
        table = np.full(shape, np.nan)
        table.flat[cells] = part["value"]
        there, base = np.any(rows, axis=1), list(arms).index(against)
        table -= table[base].copy()
        others = [at for at in range(len(arms)) if at != base]
        yield names, seeds, {arms[at]: table[at][:, there[at] | there[base]] for at in others}


def _units(values):
    """What tells the rows of one run apart."""
    return ["prompt_id"] if "prompt_id" in values else []


def baseline(number: int) -> str:
    """The arm that the others of a question are measured from: GRPO where it is one of them, else the first.

    >>> baseline(4), baseline(6)
    ('grpo', 'prompt-gdro-error')
    """
    arms = QUESTIONS[number].arms
    return BASELINE if BASELINE in arms else arms[0]


def answers(values: pd.DataFrame, numbers, value: str = "mean"):
    """`paired` for the arms of each question: (frame with a column question in front, numbers without an
    answer).

    ``values`` and ``value`` as `paired` takes them. A scale where nothing but arms of the main comparison
    was run answers question 1, and is left out here.
    """
    parts = []
    for number in numbers:
        found = paired(values[values["arm"].isin(QUESTIONS[number].arms)], value, baseline(number))
        asked = found.loc[~found["arm"].isin(MAIN_ARMS), "scale"]
        parts.append(found[found["scale"].isin(asked)].assign(question=number))
    # without a row a part has no types of its own
    table = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    table = table[["question", "scale", *COLUMNS]]
    return table, [number for number in numbers if number not in set(table["question"])]


def contrasts(values: pd.DataFrame, value: str, weighted: dict) -> pd.DataFrame:
    """Weighted sums of arms, seed by seed: one arm minus another, or what two do beyond the sum of each.

    ``weighted`` {name: {arm: weight}}, such as {"both": 1, "prompt": -1, "rollout": -1, "none": 1}; a seed
    counts where all arms of the sum have run. Columns and tests as `paired`, with the name as the arm, and
    Holm's correction over all names of a scale.
    """
    index = ["scale", "seed", *_units(values)]
    parts = [values[:0][[*index, value]].assign(arm="")]
    for name, weights in weighted.items():
        own = values[values["arm"].isin(list(weights))]
        wide = own.pivot(index=index, columns="arm", values=value).reindex(columns=list(weights))
        total = (wide * pd.Series(weights)).sum(axis=1, skipna=False).dropna()
        parts.append(total.rename(value).reset_index().assign(arm=name))
    sums = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    order = list(values["scale"].unique())
    sums = sums.sort_values("scale", key=lambda names: names.map(order.index), kind="stable")
    nothing = sums.drop_duplicates(index).assign(**{value: 0.0, "arm": _NOTHING})
    return paired(pd.concat([nothing, sums], ignore_index=True), value, _NOTHING)


def _known(differences):
    """The differences of each seed that are not NaN."""
    return [row[~np.isnan(row)] for row in differences]


def _summaries(group, seeds, prompts):
    """{arm: estimate, low, high, number and p} of differences (S, P); seeds without any are left out."""
    known = {}
    for arm, table in group.items():
        known[arm] = [row for row in _known(table) if row.size]
        if prompts == "shared" and any(row.size < table.shape[1] for row in known[arm]):
            there = ", ".join(map(str, seeds[~np.isnan(table).all(axis=1)]))
            raise ValueError(
                f"seeds {there} do not share all of their {table.shape[1]} prompts: "
                'evaluate them on the same suites, or compare them with prompts="nested"'
            )
    several = {arm: rows for arm, rows in known.items() if len(rows) > 1}
    intervals = statistics.bootstrap_intervals(several, prompts=prompts)
    found, nan = {}, float("nan")
    for arm, rows in known.items():
        d = np.array([row.mean() for row in rows])
        if d.size > 1:
            own = intervals[arm]
            found[arm] = [own.estimate, own.low, own.high, d.size, _p_value(d)]
        else:
            found[arm] = [d.item() if d.size else nan, nan, nan, d.size, nan]
    return found


def _p_value(d):
    """Of the paired t test; NaN for differences that are all equal, 1 where there is none."""
    if np.ptp(d) > 1e-12 * np.abs(d).max():
        return float(stats.ttest_1samp(d, 0.0).pvalue)
    return float("nan") if d.any() else 1.0


def answer(found: pd.DataFrame, factor=100, unit="points", level=0.05, of="arms") -> str:
    """What `paired` found, in a sentence for a title: the arms (or what ``of`` calls them) that differ after
    Holm's correction, by scale.

    >>> one = {"scale": "s", "arm": "joint", "estimate": -0.03, "p_holm": 0.01}
    >>> answer(pd.DataFrame([one, {**one, "arm": "grpo-mean-8", "p_holm": 0.4}]))
    's: both -3.0 points (1 of 2 arms)'
    >>> answer(pd.DataFrame([{**one, "p_holm": 0.4}]))
    's: no difference shown (0 of 1 arms)'
    """
    parts = []
    for scale, own in found.groupby("scale", sort=False):
        sure = own[own["p_holm"] < level]
        named = [
            f"{label(arm)} {factor * e:+.1f}" for arm, e in zip(sure["arm"], sure["estimate"], strict=True)
        ]
        held = f"{', '.join(named)} {unit}" if named else "no difference shown"
        parts.append(f"{scale}: {held} ({len(sure)} of {len(own)} {of})")
    return "\n".join(parts) if parts else "no runs to compare"


def detectable(spread: float, seeds: int, comparisons: int = 1, power: float = 0.8, level: float = 0.05):
    """The smallest true difference that a paired t test over ``seeds`` seeds shows with this ``power``.

    Args: ``spread`` standard deviation of the differences over seeds, in the unit that is returned;
    ``comparisons`` arms among which Holm's correction starts at ``level`` / comparisons. Two-sided.

    >>> round(detectable(4.0, 5), 1), round(detectable(4.0, 5, comparisons=27), 1)
    (6.7, 16.3)
    """
    df = checks.whole_number("seeds", seeds, low=2) - 1
    critical = stats.t.isf(level / comparisons / 2, df)
    # t exceeds critical where the mean exceeds critical * s: mean over the distribution of s
    bars = critical * np.sqrt(stats.chi2.ppf((np.arange(4000) + 0.5) / 4000, df) / df)

    def lack(effect):
        return (stats.norm.sf(bars - effect) + stats.norm.sf(bars + effect)).mean() - power

    return float(optimize.brentq(lack, 0, bars.max() + 10) * spread / np.sqrt(seeds))


def opened(evaluations: pd.DataFrame, above: float = 0.8) -> pd.DataFrame:
    """In how many of its seeds each arm ends above this mean@k, suite by suite: which skills a run opened.

    A row a scale and arm, a column a suite, and the number of seeds in front.
    """
    found = scores(evaluations, ["suite"])
    suites = list(dict.fromkeys(found["suite"]))
    by = found.assign(there=found["mean"] > above).groupby(["scale", "arm", "suite"], sort=False)["there"]
    table = by.sum().unstack("suite")[suites]
    table.insert(0, "seeds", by.size().groupby(level=["scale", "arm"], sort=False).first())
    order = list(dict.fromkeys(zip(found["scale"], found["arm"], strict=True)))
    return table.loc[order]


def kept(load) -> pd.DataFrame:
    """What is kept of runs whose steps are not: each held-out prompt at the last step, and what was spent.

    ``load`` finished runs of the run store (`gdro.runs.Frames`). Columns: scale, arm, seed, step, suite,
    prompt_id, correct, k; rollouts and tokens (completion tokens) that training took; training (pass rate of
    the batch, each prompt once, as the mean over all cycles: what lies under the learning curve); commit.
    """
    curves = load.steps.groupby(RUN, sort=False)["pass_rate"].mean().rename("training")
    spent = pd.DataFrame(
        [
            [key.scale, key.arm, key.seed, run["rollouts"], run["tokens"], run["git_commit"]]
            for key, run in zip(load.runs, load.manifests.values(), strict=True)
        ],
        columns=[*RUN, "rollouts", "tokens", "commit"],
    ).merge(curves.reset_index(), on=RUN, how="left")
    rows = final_step(load.evaluations)[[*RUN, "step", "suite", "prompt_id", "correct", "k"]]
    return rows.merge(spent, on=RUN, how="left", validate="many_to_one")


def collected(loads, others: pd.DataFrame) -> pd.DataFrame:
    """`kept` of several loads of the run store, empty ones too, then of the ``others``; a run that comes
    twice counts as it came first."""
    parts = [kept(load) for load in loads if load.runs]
    return pd.concat([*parts, others], ignore_index=True).drop_duplicates([*RUN, "prompt_id"])
