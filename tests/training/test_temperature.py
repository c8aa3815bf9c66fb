from __future__ import annotations

import torch

from adaverify.training.temperature import fit_temperatures


def test_known_temperatures_are_found():
    torch.manual_seed(0)
    true = torch.randn(4000, 3) * 1.5
    acceptance = true.sigmoid()
    wanted = torch.tensor([0.5, 1.0, 3.0])
    found = torch.tensor(fit_temperatures(true * wanted, acceptance))
    torch.testing.assert_close(found, wanted, rtol=0.06, atol=0.0)


def test_a_later_position_makes_up_for_earlier_ones():
    """Survival is fitted, not each position alone: what no temperature mends at 1 is compensated at 2."""
    torch.manual_seed(0)
    said = torch.full((2000, 2), 2.0)
    acceptance = torch.tensor([0.3, 0.9]).expand(2000, 2)
    first, second = fit_temperatures(said, acceptance)
    alone = fit_temperatures(said[:, 1:], acceptance[:, 1:])[0]
    assert first > 10
    assert second > alone
