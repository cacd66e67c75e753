"""Tests need no network and no second thread."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest  # what it loads must find the settings above


@pytest.fixture(scope="module")
def loaded():
    """The tests' tiny model and its tokenizer."""
    from tiny_model import model_folder
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder()
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
