from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from drafters.models import blocks
from drafters.models.reference import close, layer_fields, load_ours, save_reference


@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (layer_fields(num_layers=2), {}),
        (blocks.sliding_layers(), {"conv_kernel_size": 3, "conv_group_size": 4, "sample_from_anchor": True}),
        (layer_fields(), {"conv_kernel_size": 1}),
    ],
)
def test_blocks_and_selector_give_the_references_scores(
    tmp_path: Path, target_folder: Path, target: PreTrainedModel, layers: dict[str, Any], options: dict[str, Any]
):
    options = {"selector_rank": 6, "selector_top_k": 5} | options
    theirs = save_reference(tmp_path, target_folder, "dflash2", layers, **blocks.OPTIONS, **options)
    ours = load_ours(tmp_path, target)
    case = blocks.random_case()
    expected, expected_hidden = blocks.theirs(theirs, case)
    actual, hidden = blocks.ours(ours, case)
    close(actual, expected)
    previous = case.previous(options.get("sample_from_anchor", False))
    with torch.no_grad():
        candidates, scores = theirs.candidate_selector.select(expected, expected_hidden, previous)
        for k in range(blocks.BLOCK_SIZE):
            own_candidates, own_scores = ours.select(actual[:, k], hidden[:, k], previous[:, k])
            assert torch.equal(own_candidates, candidates[:, k])
            close(own_scores, scores[:, k])


def test_blocks_shorter_than_the_kernel(tmp_path: Path, target_folder: Path, target: PreTrainedModel):
    """Rows before a block are zeros to the convolutions, so an anchor alone is as good as the first of many."""
    options = {"conv_kernel_size": 3, "selector_rank": 6, "selector_top_k": 5, "sliding_window_non_causal": False}
    layers = blocks.sliding_layers() | {"layer_types": ["sliding_attention"] * 2}
    save_reference(tmp_path, target_folder, "dflash2", layers, **blocks.OPTIONS, **options)
    ours = load_ours(tmp_path, target)
    case = blocks.random_case()
    close(blocks.ours(ours, case, rows=1)[0], blocks.ours(ours, case)[0][:, :1])
