"""Where data sets and base models are published: a copy at hand, the hub's cache, or the hub.

Commits are those of the hub. A file fetched once is read from the cache after that, without a network.
"""

import socket
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit
from urllib.request import getproxies

from gdro import checks, schemas

FORMATS = (".parquet", ".jsonl", ".csv")
_MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
_CONTEST = "none stated; problem texts belong to the organisers"


@dataclass(frozen=True)
class Source:
    """A file on the Hugging Face hub: repository, commit, path in it, and the licence that it states."""

    repo: str
    revision: str
    file: str
    licence: str


@dataclass(frozen=True)
class Benchmark:
    """A data set: how its rows are read, and where it is published, the default place first."""

    schema: schemas.Schema
    sources: tuple[Source, ...]


BENCHMARKS = MappingProxyType(
    {
        "dapo": Benchmark(
            schemas.DAPO,
            (
                Source(
                    "open-r1/DAPO-Math-17k-Processed",
                    "31dd309567e3da778038cc87d868b6097a3ccf68",
                    "{config}/train-00000-of-00001.parquet",
                    "Apache-2.0",
                ),
                Source(
                    "BytedTsinghua-SIA/DAPO-Math-17k",
                    "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
                    "data/dapo-math-17k.parquet",
                    "Apache-2.0",
                ),
            ),
        ),
        "math500": Benchmark(
            schemas.MATH,
            (
                Source(
                    "HuggingFaceH4/MATH-500",
                    "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
                    "test.jsonl",
                    "MIT, as MATH",
                ),
            ),
        ),
        "aime24": Benchmark(
            schemas.CONTEST,
            (
                Source(
                    "HuggingFaceH4/aime_2024",
                    "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
                    "data/train-00000-of-00001.parquet",
                    _CONTEST,
                ),
            ),
        ),
        "aime25": Benchmark(
            schemas.CONTEST,
            (Source("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", "test.jsonl", _CONTEST),),
        ),
        "amc23": Benchmark(
            schemas.CONTEST,
            (
                Source(
                    "math-ai/amc23",
                    "80815d37005feb82cd7f8fbc6901d5d3eff43057",
                    "test-00000-of-00001.parquet",
                    _CONTEST,
                ),
            ),
        ),
        "minerva": Benchmark(
            schemas.MINERVA,
            (
                Source(
                    "math-ai/minervamath",
                    "ee46ddc498933b1977577953250ca5c66be64f96",
                    "test.jsonl",
                    "none stated; from MIT OpenCourseWare",
                ),
            ),
        ),
        "olympiadbench": Benchmark(
            schemas.OLYMPIAD,
            (
                Source(
                    "Hothan/OlympiadBench",
                    "91184b52131e7fc9455fef848035173aea8cc01a",
                    "OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet",
                    "Apache-2.0",
                ),
            ),
        ),
        "gpqa-diamond": Benchmark(
            schemas.GPQA,
            (
                Source(
                    "Idavidrein/gpqa",
                    "633f5ee89ab8ad4522a9f850766b73f62147ffdd",
                    "gpqa_diamond.csv",
                    "CC-BY-4.0; gated, not to be shown in the open",
                ),
            ),
        ),
        "gsm8k": Benchmark(
            schemas.GSM8K,
            (
                Source(
                    "openai/gsm8k",
                    "740312add88f781978c0658806c59bc2815b9866",
                    "main/test-00000-of-00001.parquet",
                    "MIT",
                ),
            ),
        ),
    }
)


def file_of(name: str, path=None, *, repo=None, revision=None, cache_dir=None, language="en") -> Path:
    """The file of the set ``name``: ``path`` itself, or the one in the folder ``path``, or the hub's.

    See `gdro.benchmarks.read` for the arguments and errors.
    """
    checks.one_of("task", name, tuple(BENCHMARKS))
    if path is None:
        return _fetched(name, repo, revision, cache_dir, language)
    if repo or revision:
        raise ValueError(f"path={str(path)!r} and repo={repo!r} or revision={revision!r}: give one place")
    path = Path(path)
    if path.is_dir():
        return _in_folder(name, path, language)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path.name!r} in {path.parent.name!r}: check the path")
    if path.suffix not in FORMATS:
        raise ValueError(f"{path.name!r} has an unknown format: the known ones are {', '.join(FORMATS)}")
    return path


def file_named(folder, name: str) -> Path:
    """The file of the set ``name`` in a folder that holds several: the one of its name, ``math500.jsonl``.

    Raises ``FileNotFoundError`` where there is none, or more than one.
    """
    folder = Path(folder)
    found = [folder / f"{name}{ending}" for ending in FORMATS if (folder / f"{name}{ending}").is_file()]
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise FileNotFoundError(
            f"{name}: the folder {folder.name!r} holds {listed} of its files, where one is needed: "
            f"{name} with an ending of {', '.join(FORMATS)}"
        )
    return found[0]


def model_folder(repo: str, revision: str, *, fetch: bool = True) -> Path:
    """Folder of a model of the hub at a commit: the cache's, or with ``fetch`` the hub's once it is there.

    Raises ``FileNotFoundError`` where it cannot be had, with the command that fetches it.
    """
    import huggingface_hub as hub  # slow to import, and only needed here
    from huggingface_hub import errors

    try:
        found = hub.snapshot_download(
            repo,
            revision=revision,
            allow_patterns=_MODEL_FILES,
            local_files_only=not fetch or _out_of_reach(),
        )
    except (errors.LocalEntryNotFoundError, errors.RepositoryNotFoundError, errors.HfHubHTTPError) as error:
        raise FileNotFoundError(
            f"the model {repo} at {revision} is not in the cache and was not fetched "
            f"({type(error).__name__}): where there is a network, run `hf download {repo} --revision "
            f"{revision}` and copy that cache here (HF_HOME says where it is), or pass `model`, a folder"
        ) from error
    return Path(found)


def _path_in(source, language):
    """Where the file lies in its repository; open-r1 publishes the English problems by themselves."""
    return source.file.format(config="en" if language == "en" else "all")


def _in_folder(name, folder, language):
    """The published file at its place in ``folder``, or the only data file there is."""
    found = sorted(p for p in folder.rglob("*") if p.suffix in FORMATS)
    published = [folder / _path_in(source, language) for source in BENCHMARKS[name].sources]
    chosen = [p for p in found if p in published] or found
    if len(chosen) != 1:
        listed = ", ".join(p.relative_to(folder).as_posix() for p in chosen[:5]) or "none"
        raise FileNotFoundError(
            f"the folder {folder.name!r} holds {len(chosen)} data files ({listed}), not one of {name}: give "
            "the file itself"
        )
    return chosen[0]


def _fetched(name, repo, revision, cache_dir, language):
    import huggingface_hub as hub  # slow to import, and only needed here
    from huggingface_hub import errors

    places = {source.repo: source for source in BENCHMARKS[name].sources}
    source = places[checks.one_of("repo", repo or next(iter(places)), tuple(places))]
    file, commit = _path_in(source, language), revision or source.revision
    try:
        where = {"repo_type": "dataset", "revision": commit, "cache_dir": cache_dir}
        try:
            return Path(hub.hf_hub_download(source.repo, file, **where, local_files_only=True))
        except errors.LocalEntryNotFoundError:
            if _out_of_reach():
                raise
        return Path(hub.hf_hub_download(source.repo, file, **where))
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{name} is gated: ask for access on the hub's page of the data set {source.repo}, then run "
            "`hf auth login` (or set HF_TOKEN) as the account that was let in, or give a copy of the file"
        ) from error
    except (errors.EntryNotFoundError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise FileNotFoundError(
            f"{name}: {file!r} of {source.repo} at {commit} is not in the cache and could not be fetched "
            f"({type(error).__name__}). Load it once where there is a network (HF_HUB_OFFLINE unset), copy "
            "that cache here, or give a copy of the file"
        ) from error


def _out_of_reach() -> bool:
    """Whether the hub cannot be connected to: found out once, where the hub's library would try six times.

    Behind a proxy, whose way out only the proxy knows, it is left to the library.
    """
    from huggingface_hub import constants  # slow to import, and only needed here

    if constants.HF_HUB_OFFLINE:
        return True
    if getproxies().keys() - {"no"}:
        return False
    hub = urlsplit(constants.ENDPOINT)
    port = hub.port or {"http": 80}.get(hub.scheme, 443)
    try:
        socket.create_connection((hub.hostname, port), timeout=constants.HF_HUB_ETAG_TIMEOUT).close()
    except OSError:
        return True
    return False
