"""The paper's training set and its benchmarks as data sets: read in every published schema, cleaned, counted.

`load` is what ``gdro.tasks.load`` calls for every set that is not tiny; `read` returns the `Report` as well,
which says what was left out and why.
"""

import csv
import json
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace

from gdro import checks, rewards
from gdro.prompts import CHOICE_SUFFIX, SUFFIX, prompt_key, prompt_of, with_choices
from gdro.schemas import Problem
from gdro.sources import BENCHMARKS, file_of

logger = logging.getLogger(__name__)

PAPER_SUITES = ("math500", "aime24", "aime25", "amc23", "minerva", "olympiadbench", "gpqa-diamond")
LANGUAGES = ("en", "zh", "all")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


@dataclass(frozen=True)
class Report:
    """What became of the rows of a data set. Every count is in rows, and ``rows`` is the sum of the others
    but the last.

    Rules: a row is ``empty`` without a problem or an answer. Rows of equal text are one problem, kept once;
    the others are ``duplicates``. ``contradicting`` are all rows of a problem that is given two different
    answers (or two equal choices): nothing says which is right, so that none is kept. ``unverified`` golds do
    not verify against themselves, so that nobody's completion could be graded. ``near_duplicates`` are kept:
    their text differs from another's in white space or case only.
    """

    rows: int
    empty: int = 0
    other_language: int = 0
    duplicates: int = 0
    contradicting: int = 0
    unverified: int = 0
    kept: int = 0
    near_duplicates: int = 0

    def __str__(self):
        counts = asdict(self)
        total = counts.pop("rows")
        return f"{total} rows: " + ", ".join(f"{n} {k.replace('_', ' ')}" for k, n in counts.items() if n)


def load(name: str, path=None, **options):
    """The data set ``name``, as `read` gives it, without the report (which is logged, and kept in
    ``dataset.info.description``)."""
    return read(name, path, **options)[0]


def read(
    name: str,
    path=None,
    *,
    repo: str | None = None,
    revision: str | None = None,
    cache_dir=None,
    language: str = "en",
    style: str = "chat",
    suffix: str | None = None,
    choice_seed: int = 0,
    verify: bool = True,
):
    """The data set ``name`` as (``datasets.Dataset``, `Report`).

    Columns: prompt (a conversation, or text), answer (the letter, with choices), prompt_id, suite (the name),
    level (1 to 5 in MATH-500, else None) and subject (or None). prompt_id hashes the problem and its answer
    in the data set's own words: it changes with neither ``style``, ``suffix`` nor the order of choices.

    Args: ``path`` a parquet, JSON-lines or CSV file of any schema the set is published in, or a folder that
    holds one (default: the hub). ``repo`` another published place of the set, such as
    "BytedTsinghua-SIA/DAPO-Math-17k" (1.8 million rows: about a minute). ``revision`` another commit than the
    pinned one. ``cache_dir`` another hub cache. ``language`` of the problems: "en" has no Han characters,
    "zh" has some, "all". ``style`` "chat" or "plain", and ``suffix`` (default: the paper's, and one for
    choices): see `gdro.prompts`. ``choice_seed`` orders the choices. ``verify`` leaves out golds that do not
    verify against themselves (`gdro.rewards.verify_gold`); with choices there is nothing to verify.

    Errors: ``ValueError`` for an unknown name, option or schema, ``PermissionError`` for a gated set,
    ``FileNotFoundError`` for a file that is neither here nor to be fetched; each says what to do.
    """
    checks.one_of("language", language, LANGUAGES)
    checks.whole_number("choice_seed", choice_seed, low=0)
    file = file_of(name, path, repo=repo, revision=revision, cache_dir=cache_dir, language=language)
    problems, report = clean(_problems(name, file), language)
    if verify and problems and not problems[0].choices:
        good = rewards.verify_gold([problem.answers[0] for problem in problems])
        problems = [problem for problem, verified in zip(problems, good, strict=True) if verified]
        report = replace(report, unverified=report.kept - len(problems), kept=len(problems))
    if not problems:
        raise ValueError(f"{name}: nothing is left of {file.name} ({report}); check the file and `language`")
    doubtful = report.contradicting or report.unverified
    logger.log(logging.WARNING if doubtful else logging.INFO, "%s: %s", name, report)
    dataset = _dataset([_row(name, problem, style, suffix, choice_seed) for problem in problems], style)
    dataset.info.description = f"{name}: {report}"
    return dataset, report


def clean(problems: Iterable[Problem], language: str = "all") -> tuple[list[Problem], Report]:
    """The problems to keep, each with its one answer, in order of first appearance; and the `Report`, whose
    docstring has the rules."""
    first: dict[str, Problem] = {}
    answers: dict[str, set] = {}
    copies: dict[str, int] = {}
    rows = empty = foreign = 0
    for problem in problems:
        rows += 1
        stated = {answer for answer in problem.answers if answer}
        if not problem.text.strip() or not stated:
            empty += 1
        elif language != "all" and bool(_HAN.search(problem.text)) != (language == "zh"):
            foreign += 1
        else:
            first.setdefault(problem.text, problem)
            answers.setdefault(problem.text, set()).update(stated)
            copies[problem.text] = copies.get(problem.text, 0) + 1
    kept = [
        replace(problem, answers=tuple(answers[text]))
        for text, problem in first.items()
        if len(answers[text]) == 1 and len(set(problem.choices)) == len(problem.choices)
    ]
    consistent = sum(copies[problem.text] for problem in kept)
    plain = {" ".join(problem.text.split()).casefold() for problem in kept}
    return kept, Report(
        rows=rows,
        empty=empty,
        other_language=foreign,
        duplicates=consistent - len(kept),
        contradicting=sum(copies.values()) - consistent,
        kept=len(kept),
        near_duplicates=len(kept) - len(plain),
    )


def _row(name, problem, style, suffix, choice_seed):
    text, answer, gap, usual = problem.text, problem.answers[0], " ", SUFFIX
    key = prompt_key(text, answer)
    if problem.choices:
        text, answer = with_choices(text, problem.choices, answer, choice_seed)
        gap, usual = "\n\n", CHOICE_SUFFIX
    prompt = prompt_of(text, usual if suffix is None else suffix, style, gap)
    known = {"suite": name, "level": problem.level, "subject": problem.subject}
    return {"prompt": prompt, "answer": answer, "prompt_id": key, **known}


def _dataset(rows, style):
    from datasets import Dataset, Features, List, Value  # slow to import, and only needed here

    text = Value("string")
    features = Features(
        {
            "prompt": text if style == "plain" else List({"role": text, "content": text}),
            **{column: text for column in ("answer", "prompt_id", "suite")},
            "level": Value("int64"),
            "subject": text,
        }
    )
    return Dataset.from_list(rows, features=features)


def _problems(name, file) -> Iterator[Problem]:
    schema = BENCHMARKS[name].schema
    for number, row in enumerate(_rows(file, schema.fields), start=1):
        try:
            yield schema.read(row)
        except KeyError as error:
            raise ValueError(
                f"{file.name}, row {number} has no field {error.args[0]}, but {', '.join(map(str, row))}: "
                f"this is not {name} in a known schema"
            ) from error


def _rows(file, fields) -> Iterator[dict]:
    if file.suffix == ".parquet":
        from pyarrow import parquet

        table = parquet.ParquetFile(file)
        columns = [column for column in table.schema_arrow.names if column in fields]
        for batch in table.iter_batches(columns=columns):
            yield from batch.to_pylist()
        return
    if file.suffix == ".csv":
        with file.open(encoding="utf-8", newline="") as lines:
            yield from csv.DictReader(lines)
        return
    yield from json_lines(file)


def json_lines(file) -> Iterator[dict]:
    """The objects of a file with one JSON object a line; ValueError names the line that holds none."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{file.name}, line {number} is not JSON ({error}): one object a line is expected"
                ) from error
            if not isinstance(row, dict):
                raise ValueError(
                    f"{file.name}, line {number} is not an object with fields: one object a line is expected"
                )
            yield row
