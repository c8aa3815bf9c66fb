"""EAGLE-3 (``method: eagle3``, arXiv 2503.01840)."""

from __future__ import annotations

from adaverify.drafters.chain import ChainDrafter


class Eagle3Drafter(ChainDrafter):
    """A layer or two over several of the target's hidden states, which drafts on from its own.

    Each distribution depends on the tokens drawn before it, so that the budget may not look at this block.
    """
