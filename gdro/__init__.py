"""Group distributionally robust optimisation for reinforcement learning of reasoning models.

A study package for Panaganti et al., "Group Distributionally Robust Optimization-Driven Reinforcement
Learning for LLM Reasoning" (arXiv 2601.19280). Names are loaded on first use, so that ``import gdro`` needs
neither torch nor TRL.
"""

from importlib import import_module

_HOMES = {
    "OnlineDifficultyClassifier": "difficulty",
    "PromptGDRO": "prompt_gdro",
    "RolloutGDRO": "rollout_gdro",
    "Exp3P": "exp3p",
    "Controller": "controller",
    "Plan": "controller",
    "GDROConfig": "config",
    "GDROTrainer": "trainer",
}

__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'gdro' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(f"gdro.{_HOMES[name]}"), name)


def __dir__():
    return sorted([*globals(), *__all__])
