"""Draft models of the trained methods: configuration, checkpoint and computation, without the drafting itself."""

from adaverify.drafters.models.base import DraftModel
from adaverify.drafters.models.config import DraftModelConfig, read_draft_config
from adaverify.drafters.models.dflash import DFlashDraftModel
from adaverify.drafters.models.dflash2 import DFlash2DraftModel
from adaverify.drafters.models.dspark import DSparkDraftModel
from adaverify.drafters.models.eagle3 import Eagle3DraftModel
from adaverify.drafters.models.load import build_draft_model, load_draft_model
from adaverify.drafters.models.mtp import MtpDraftModel

__all__ = [
    "DFlash2DraftModel",
    "DFlashDraftModel",
    "DSparkDraftModel",
    "DraftModel",
    "DraftModelConfig",
    "Eagle3DraftModel",
    "MtpDraftModel",
    "build_draft_model",
    "load_draft_model",
    "read_draft_config",
]
