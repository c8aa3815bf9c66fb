"""Multi-token prediction (``method: mtp``; DeepSeek-V3, arXiv 2412.19437)."""

from __future__ import annotations

from adaverify.drafters.chain import ChainDrafter


class MtpDrafter(ChainDrafter):
    """One layer over the target's last hidden state and the next token's embedding, which drafts on from its own.

    Each distribution depends on the tokens drawn before it, so that the budget may not look at this block.
    """
