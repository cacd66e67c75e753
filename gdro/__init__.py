"""Group distributionally robust optimisation for reinforcement learning of reasoning models.

A study package for Panaganti et al., "Group Distributionally Robust Optimization-Driven Reinforcement
Learning for LLM Reasoning" (arXiv 2601.19280). Names are loaded on first use, so that ``import gdro`` needs
neither torch nor TRL.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what a type checker and an editor cannot know of names that are loaded on first use
    from gdro.config import GDROConfig as GDROConfig
    from gdro.controller import Controller as Controller
    from gdro.difficulty import OnlineDifficultyClassifier as OnlineDifficultyClassifier
    from gdro.exp3p import Exp3P as Exp3P
    from gdro.plan import Plan as Plan
    from gdro.prompt_gdro import PromptGDRO as PromptGDRO
    from gdro.rollout_gdro import RolloutGDRO as RolloutGDRO
    from gdro.trainer import GDROTrainer as GDROTrainer

_HOMES = {
    "OnlineDifficultyClassifier": "difficulty",
    "PromptGDRO": "prompt_gdro",
    "RolloutGDRO": "rollout_gdro",
    "Exp3P": "exp3p",
    "Controller": "controller",
    "Plan": "plan",
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
