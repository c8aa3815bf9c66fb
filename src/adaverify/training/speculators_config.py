"""The part of a checkpoint's configuration that says what it drafts for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaverify.training.recipes.base import TargetInfo


def speculators_config(algorithm: str, target: TargetInfo, num_speculative_tokens: int) -> Any:
    """Speculators' description of the algorithm and its target ("verifier").

    The target's path, since building a model looks its configuration up; the checkpoint gets its name instead.
    """
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=num_speculative_tokens)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=target.path, architectures=list(target.config.architectures or [])),
    )
