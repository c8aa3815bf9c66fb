"""Target and drafter must mean the same by a token id."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adaverify.errors import ConfigError


def check_same_tokenizer(
    target_name: str, target: PreTrainedTokenizerBase, drafter_name: str, drafter: PreTrainedTokenizerBase
) -> None:
    """Refuse a drafter whose token ids mean something else.

    Raises
    ------
    ConfigError
        The tokenizers give some token different ids; names both models and an example.
    """
    ours, theirs = target.get_vocab(), drafter.get_vocab()
    if ours == theirs:
        return
    differing = [token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)]
    token = min(differing)
    raise ConfigError(
        f"drafter {drafter_name!r} cannot draft for target {target_name!r}: their tokenizers differ in "
        f"{len(differing)} tokens (target {len(ours)} tokens, drafter {len(theirs)}; for example {token!r} is "
        f"{ours.get(token)} in the target and {theirs.get(token)} in the drafter). "
        "Use a drafter of the same model family."
    )


def align_logits(logits: Tensor, vocab_size: int) -> Tensor:
    """Fit draft logits [R, Vd] to the target's width: embeddings are padded differently, the tokens are the same."""
    width = logits.shape[-1]
    if width >= vocab_size:
        return logits[..., :vocab_size]
    return torch.nn.functional.pad(logits, (0, vocab_size - width), value=float("-inf"))
