"""Public data sets: every published schema read, cleaned by the stated rules, counted; ids and choices that
stay; files from a folder, a cache or nowhere."""

import csv
import json
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import huggingface_hub
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from gdro import benchmarks, rewards, sources
from gdro.prompts import CHOICE_SUFFIX, LETTERS, SUFFIX, prompt_key, with_choices
from gdro.schemas import WRAPPERS, Problem, unwrapped
from gdro.sources import BENCHMARKS, Source, file_of

ROWS = Path(__file__).with_name("rows")
DAPO_FORMS = ("dapo-wrapped.jsonl", "dapo-original.jsonl", "dapo-processed.jsonl")
FILES = {
    **{name: f"{name}.jsonl" for name in BENCHMARKS if name not in ("dapo", "gpqa-diamond")},
    "dapo": "dapo-wrapped.jsonl",
    "gpqa-diamond": "gpqa_diamond.csv",
}


def read(name, file=None, **options):
    return benchmarks.read(name, ROWS / (file or FILES[name]), **({"verify": False} | options))


def text(row):
    (message,) = row["prompt"]
    assert message["role"] == "user"
    return message["content"]


# what the schemas hold


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("dapo", ["10", "509", "7", "3825", "3825"]),
        ("math500", [r"\frac{14}{3}", r"3\sqrt{13}", "-50", "6+9i"]),
        ("aime24", ["25", "143"]),
        ("aime25", ["210", "14"]),
        ("amc23", ["27", "0.25"]),
        ("minerva", ["5.0", r"\frac{2 t}{2}"]),
        ("olympiadbench", ["f(x)=-1,f(x)=x+1", "166", "2^{1009}"]),
        ("gsm8k", ["3", "114200"]),
    ],
)
def test_answers_as_a_reader_would_write_them(name, answers):
    assert read(name)[0]["answer"] == answers


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_set_has_the_same_columns(name):
    data, report = read(name)
    assert data.column_names == ["prompt", "answer", "prompt_id", "suite", "level", "subject"]
    assert set(data["suite"]) == {name}
    assert len(set(data["prompt_id"])) == len(data) == report.kept
    assert str(report) in data.info.description
    suffix = f"\n\n{CHOICE_SUFFIX}" if name == "gpqa-diamond" else f" {SUFFIX}"
    assert all(text(row).endswith(suffix) for row in data)
    plain = read(name, style="plain")[0]
    assert plain["prompt"] == [text(row) for row in data]
    assert plain["prompt_id"] == data["prompt_id"]


def test_levels_and_subjects_where_they_are_known():
    assert set(read("math500")[0]["level"]) <= {1, 2, 3, 4, 5}
    assert read("math500")[0][0]["subject"] == "Algebra"
    assert read("olympiadbench")[0]["subject"] == ["Algebra", "Geometry", "Number Theory"]
    assert read("gsm8k")[0]["level"] == [None, None]


def test_both_forms_of_minerva_are_one():
    assert read("minerva")[0]["prompt_id"] == read("minerva", "minerva-solution.jsonl")[0]["prompt_id"]


def test_a_context_stands_before_its_question(tmp_path):
    row = json.loads((ROWS / "olympiadbench.jsonl").read_text(encoding="utf-8").splitlines()[0])
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row | {"context": "Let $f$ be odd."}), encoding="utf-8")
    data = benchmarks.load("olympiadbench", path, verify=False, suffix="")
    assert text(data[0]) == "Let $f$ be odd.\n\n" + row["question"].strip()


def test_minerva_without_a_box_is_empty(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"problem": "p", "solution": "none"}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"nothing is left of rows.jsonl .1 rows: 1 empty"):
        benchmarks.load("minerva", path)


# the forms of DAPO


@pytest.mark.parametrize("form", DAPO_FORMS)
def test_the_forms_of_dapo_hold_the_same_problems(form):
    """The processed form has its duplicates and second answers removed already, by text alone."""
    ids = read("dapo")[0]["prompt_id"]
    assert read("dapo", form)[0]["prompt_id"][: len(ids)] == ids or form == "dapo-processed.jsonl"
    assert set(ids) <= set(read("dapo", form)[0]["prompt_id"])
    for row in read("dapo", form)[0]:
        assert not any(after.strip() in text(row) for before, after in WRAPPERS if before)


@given(st.text(max_size=30))
def test_unwrapping_undoes_every_wrapper(problem):
    for before, after in WRAPPERS:
        assert unwrapped(before + problem + after) == problem


def test_dapo_is_counted_by_the_stated_rules():
    """Nine rows: one twice, two that contradict each other, one Chinese, two that differ in one blank."""
    report = read("dapo")[1]
    assert asdict(report) == {
        "rows": 9,
        "empty": 0,
        "other_language": 1,
        "duplicates": 1,
        "contradicting": 2,
        "unverified": 0,
        "kept": 5,
        "near_duplicates": 1,
    }
    assert read("dapo", language="zh")[1].kept == 1
    assert read("dapo", language="all")[1].kept == 6


PROBLEMS = st.lists(
    st.builds(
        Problem,
        st.sampled_from(["", " ", "a", "A", "b ", "b", "求"]),
        st.lists(st.sampled_from(["", "1", "2"]), max_size=2).map(tuple),
    ),
    max_size=12,
)


@given(PROBLEMS, st.sampled_from(benchmarks.LANGUAGES))
def test_counts_add_up_and_what_is_kept_is_one_problem_with_one_answer(problems, language):
    kept, report = benchmarks.clean(problems, language)
    counts = asdict(report)
    assert counts["rows"] == len(problems)
    assert counts["rows"] == sum(counts.values()) - counts["rows"] - counts["near_duplicates"]
    texts = [problem.text for problem in kept]
    assert len(set(texts)) == len(texts) == report.kept
    for problem in kept:
        stated = {a for other in problems if other.text == problem.text for a in other.answers if a}
        assert stated == set(problem.answers)
        assert len(stated) == 1
    whole = [problem.text for problem in problems if any(problem.answers)]
    assert texts == sorted(texts, key=whole.index)


def test_one_row_that_states_two_answers_contradicts_itself(tmp_path):
    rows = [
        {"prompt": "p", "solution": "1", "reward_model": {"ground_truth": "2"}},
        {"prompt": "q", "solution": "1"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    report = benchmarks.read("dapo", path, verify=False)[1]
    assert (report.contradicting, report.kept) == (1, 1)


def test_parquet_and_json_lines_are_read_alike(tmp_path):
    for form in DAPO_FORMS:
        rows = [json.loads(line) for line in (ROWS / form).read_text(encoding="utf-8").splitlines()]
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        data = benchmarks.load("dapo", tmp_path / "rows.parquet", verify=False)
        assert data.to_list() == read("dapo", form)[0].to_list()


# ids, golds and choices


def test_ids_are_the_same_in_another_process():
    code = "from gdro import benchmarks as b; print(*b.load('dapo', PATH, verify=False)['prompt_id'])"
    script = code.replace("PATH", repr(str(ROWS / FILES["dapo"])))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == read("dapo")[0]["prompt_id"]


def test_an_id_is_the_hash_of_the_problem_and_its_answer_alone():
    (first, *_) = read("math500")[0]
    problem = text(first).removesuffix(f" {SUFFIX}")
    assert first["prompt_id"] == prompt_key(problem, first["answer"])
    assert read("math500", suffix="", style="plain")[0][0] == first | {"prompt": problem}


def test_golds_that_do_not_verify_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(
        rewards, "verify_gold", lambda golds: [gold != "166" for gold in golds], raising=False
    )
    data, report = read("olympiadbench", verify=True)
    assert data["answer"] == ["f(x)=-1,f(x)=x+1", "2^{1009}"]
    assert (report.rows, report.unverified, report.kept) == (3, 1, 2)


def test_choices_are_lettered_and_the_answer_is_the_right_letter():
    with (ROWS / "gpqa_diamond.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    data, report = read("gpqa-diamond", verify=True)
    assert (report.rows, report.contradicting, report.kept) == (3, 1, 2)
    for row, published in zip(data, rows, strict=False):
        lines = text(row).splitlines()
        assert f"{row['answer']}. {published['Correct Answer']}" in lines
        assert [line[0] for line in lines if line[1:3] == ". "] == list("ABCD")
        assert text(row).startswith(published["Question"])


def test_the_order_of_choices_follows_its_seed_and_the_id_does_not():
    found = [read("gpqa-diamond", choice_seed=seed)[0] for seed in range(20)]
    assert {tuple(data["prompt_id"]) for data in found} == {tuple(found[0]["prompt_id"])}
    assert {data["answer"][0] for data in found} == set("ABCD")
    assert read("gpqa-diamond", choice_seed=3)[0].to_list() == found[3].to_list()


def test_every_letter_is_right_equally_often():
    counts = dict.fromkeys("ABCD", 0)
    for number in range(4000):
        counts[with_choices(f"question {number}", "wxyz", "w", seed=0)[1]] += 1
    expected = 1000
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 16.3  # chi-square, 3 df, p = 0.001


@given(st.permutations(["w", "x", "y", "z"]), st.integers(0, 9))
def test_the_published_order_of_choices_does_not_matter(choices, seed):
    shown, letter = with_choices("q", choices, "x", seed)
    assert (shown, letter) == with_choices("q", ["w", "x", "y", "z"], "x", seed)
    assert letter in LETTERS[:4]


# where the file is


def cached(folder, source: Source, content: bytes):
    """Put a file where the hub's client keeps one of this commit."""
    file = source.file.format(config="en")
    path = folder / f"datasets--{source.repo.replace('/', '--')}" / "snapshots" / source.revision / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["aime25", "gpqa-diamond"])
def test_a_cached_file_needs_no_network(tmp_path, name):
    (source,) = BENCHMARKS[name].sources
    cached(tmp_path, source, (ROWS / FILES[name]).read_bytes())
    data = benchmarks.load(name, cache_dir=tmp_path, verify=False)
    assert data.to_list() == read(name)[0].to_list()


def test_another_published_place_can_be_asked_for(tmp_path):
    rows = [
        json.loads(line) for line in (ROWS / "dapo-original.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    source = BENCHMARKS["dapo"].sources[1]
    cached(tmp_path, source, (tmp_path / "rows.parquet").read_bytes())
    data = benchmarks.load("dapo", repo=source.repo, cache_dir=tmp_path, verify=False)
    assert data.to_list() == read("dapo")[0].to_list()


def test_every_commit_is_pinned_in_full():
    for benchmark in BENCHMARKS.values():
        for source in benchmark.sources:
            assert len(source.revision) == 40
            assert set(source.revision) <= set("0123456789abcdef")


def test_what_is_neither_cached_nor_reachable_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"'test.jsonl' of HuggingFaceH4/MATH-500 at 6e4e.* Load it once"
    ):
        benchmarks.load("math500", cache_dir=tmp_path)


@pytest.mark.parametrize("there", [False, True])
def test_the_hub_is_asked_for_what_is_missing_only_where_it_can_be_reached(tmp_path, monkeypatch, there):
    """Its library asks six times, in 23 seconds, before it gives up a hub that is not there."""
    asked = []

    def library(*args, local_files_only=False, **kwargs):
        asked.append(local_files_only)
        raise huggingface_hub.errors.LocalEntryNotFoundError("not here")

    for name in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, library)
    monkeypatch.setattr(sources, "getproxies", dict)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        if there:
            door.listen()
        endpoint = f"http://127.0.0.1:{door.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        with pytest.raises(FileNotFoundError, match="Load it once where there is a network"):
            benchmarks.load("math500", cache_dir=tmp_path)
        with pytest.raises(FileNotFoundError, match="hf download owner/name"):
            sources.model_folder("owner/name", "0" * 40)
    assert asked == ([True, False, False] if there else [True, True])


def test_behind_a_proxy_the_library_finds_out(monkeypatch):
    monkeypatch.setattr(sources, "getproxies", lambda: {"https": "http://proxy:1", "no": "localhost"})
    monkeypatch.setattr(sources.socket, "create_connection", None)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    assert not sources._out_of_reach()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert sources._out_of_reach()


def test_a_gated_set_says_how_to_get_in(monkeypatch):
    class Response:
        headers, request, status_code = {}, None, 403

    def refuse(*args, **kwargs):
        raise huggingface_hub.errors.GatedRepoError("403", response=Response())

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(PermissionError, match=r"gpqa-diamond is gated: .*Idavidrein/gpqa.*hf auth login"):
        benchmarks.load("gpqa-diamond")


def test_a_folder_is_searched_for_the_published_file(tmp_path):
    (tmp_path / "gpqa_diamond.csv").write_bytes((ROWS / "gpqa_diamond.csv").read_bytes())
    assert file_of("gpqa-diamond", tmp_path).name == "gpqa_diamond.csv"
    (tmp_path / "gpqa_main.csv").write_text("x", encoding="utf-8")
    assert file_of("gpqa-diamond", tmp_path).name == "gpqa_diamond.csv"
    with pytest.raises(FileNotFoundError, match=r"holds 2 data files .*gpqa_main.csv.* give the file itself"):
        file_of("gsm8k", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "mmlu"}, "unknown task 'mmlu'; the known ones are 'dapo', 'math500'"),
        ({"name": "dapo", "language": "fr"}, "unknown language 'fr'"),
        ({"name": "dapo", "style": "raw"}, "unknown style 'raw'"),
        (
            {"name": "dapo", "repo": "someone/else", "path": None},
            "unknown repo 'someone/else'.*BytedTsinghua",
        ),
        ({"name": "dapo", "repo": "someone/else"}, "give one place"),
        ({"name": "dapo", "path": ROWS / "none.jsonl"}, "no file 'none.jsonl' in 'rows'"),
        ({"name": "dapo", "path": ROWS / "README.md"}, "unknown format: the known ones are .parquet"),
        ({"name": "gpqa-diamond"}, "row 1 has no field Correct Answer, .*not gpqa-diamond in a known schema"),
        ({"name": "aime24", "path": ROWS / "gpqa_diamond.csv"}, "no field problem or question"),
        ({"name": "gsm8k", "choice_seed": -1}, "choice_seed must be at least 0"),
    ],
)
def test_what_cannot_be_loaded_is_refused(options, message):
    given_path = options.pop("path", ROWS / "dapo-wrapped.jsonl")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        benchmarks.load(path=given_path, verify=False, **options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is not an object"),
        ('{"prompt": "", "answer": ""}', "nothing is left"),
    ],
)
def test_broken_files_are_refused(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        benchmarks.load("dapo", path)
