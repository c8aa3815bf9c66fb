from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from drafters.models import blocks
from drafters.models.reference import DRAFT_VOCAB, KEPT, close, layer_fields, load_ours, save_reference


@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (layer_fields(), {}),
        (layer_fields(num_layers=2), {"reduced": True, "sample_from_anchor": True}),
        (blocks.sliding_layers(), {}),
        (blocks.sliding_layers(), {"sliding_window_non_causal": True}),
        (layer_fields(num_layers=2, layer_types=["sliding_attention", "full_attention"]), {}),
    ],
    ids=["full", "reduced", "sliding-causal", "sliding-bidirectional", "window-off"],
)
def test_blocks_give_the_references_logits(
    tmp_path: Path, target_folder: Path, target: PreTrainedModel, layers: dict[str, Any], options: dict[str, Any]
):
    theirs = save_reference(tmp_path, target_folder, "dflash", layers, **blocks.OPTIONS, **options)
    ours = load_ours(tmp_path, target)
    case = blocks.random_case()
    expected, expected_hidden = blocks.theirs(theirs, case)
    actual, hidden = blocks.ours(ours, case)
    close(hidden, expected_hidden)
    close(actual, expected)
    assert ours.config.max_draft_tokens == (4 if options.get("sample_from_anchor") else 3)
    if options.get("reduced"):
        assert actual.shape[-1] == DRAFT_VOCAB
        assert torch.equal(ours.target_token_ids, KEPT)


def test_shorter_blocks_of_causal_layers_are_the_longer_ones_first_rows(
    tmp_path: Path, target_folder: Path, target: PreTrainedModel
):
    layers = blocks.sliding_layers() | {"layer_types": ["sliding_attention"] * 2}
    save_reference(tmp_path, target_folder, "dflash", layers, **blocks.OPTIONS)
    ours = load_ours(tmp_path, target)
    case = blocks.random_case()
    close(blocks.ours(ours, case, rows=2)[0], blocks.ours(ours, case)[0][:, :2])


def test_blocks_of_different_lengths_share_a_pass(tmp_path: Path, target_folder: Path, target: PreTrainedModel):
    from drafters.models.reference import Store, bidirectional

    save_reference(tmp_path, target_folder, "dflash", blocks.sliding_layers(), **blocks.OPTIONS)
    ours = load_ours(tmp_path, target)
    starts, lengths = (6, 3), (4, 2)

    def run(which: list[int]) -> torch.Tensor:
        store = Store(ours, len(which))
        for slot, i in enumerate(which):
            taps = blocks.random_case().taps[: starts[i]]
            store.write_context(slot, ours.context(ours.project(taps), torch.arange(starts[i])[None]))
        tokens = [[3, *[blocks.MASK_TOKEN] * (lengths[i] - 1)] for i in which]
        batch = store.pack(tokens, [starts[i] for i in which])
        return ours(batch.token_ids, batch.positions, bidirectional(batch.context))[0]

    with torch.no_grad():
        close(run([0, 1]), torch.cat([run([0]), run([1])]))
