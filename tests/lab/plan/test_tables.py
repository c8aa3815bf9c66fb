from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from adaverify.errors import ConfigError
from adaverify.lab.plan import SourcedCosts, load_costs, shipped_tables
from adaverify.lab.plan.fit import CONCURRENCIES, NAME, PUBLISHED, fit_published
from adaverify.lab.plan.roofline import CHIPS, Chip, Network, roofline, roofline_table
from lab import synthetic

MADE = {NAME: fit_published, **{f"{chip}-8b-roofline": lambda chip=chip: roofline_table(chip) for chip in CHIPS}}


def test_every_shipped_table_is_what_its_function_gives() -> None:
    assert shipped_tables() == sorted(MADE)
    for name, make in MADE.items():
        shipped, made = load_costs(name), make()
        for curve, again in ((shipped.costs.verify, made.costs.verify), (shipped.costs.draft, made.costs.draft)):
            assert curve is not None
            assert again is not None
            assert curve.sizes == again.sizes
            # least squares ends a little elsewhere with another build of the linear algebra
            assert curve.costs == pytest.approx(again.costs, rel=1e-3, abs=2e-3)
        assert (shipped.kind, shipped.what, shipped.source, shipped.derivation, shipped.per_pass) == (
            made.kind, made.what, made.source, made.derivation, made.per_pass,
        )  # fmt: skip
        assert shipped.kind != "measured"
        json.dumps(made.to_dict())


def test_the_fitted_table_gives_back_the_published_throughputs() -> None:
    shipped = load_costs(NAME)
    tables = shipped.costs.materialize(256, 2048)
    for depth, row in PUBLISHED.items():
        tokens = shipped.fit["tokens_per_round"][str(depth)] if depth else 1.0
        for c, published in zip(CONCURRENCIES, row, strict=True):
            step_ms = tables.verify[c * (1 + depth)] + (tables.draft[-1, c] if depth else 0.0)
            assert 1e3 * c * tokens / float(step_ms) == pytest.approx(published, rel=0.05 if depth else 1e-3)
    assert shipped.fit["median_absolute_error"] < 0.025
    # more drafts give more tokens, and each less than the one before
    three, five, seven = shipped.fit["tokens_per_round"].values()
    assert three < five < seven < five + (five - three)


def test_a_roofline_is_flat_until_arithmetic_takes_over() -> None:
    # 1e9 weights of 2 bytes take 1 ms to read; a token takes 1/50 ms
    curve = roofline(Chip("", bandwidth=2e12, flops=1e14), Network("", params=1e9), overhead_ms=0.5)
    table = curve.table(10_000)
    assert table[[1, 49, 50, 100, 10_000]].tolist() == pytest.approx([1.5, 1.5, 1.5, 2.5, 200.5])


def test_tables_are_read_from_files_bare_or_with_their_source(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(synthetic.COSTS.to_dict()))
    bare = load_costs(str(file))
    assert (bare.costs, bare.kind, bare.name) == (synthetic.COSTS, "measured", str(file))
    whole = SourcedCosts(synthetic.COSTS, "mine", "published", "a chip", source="a page", per_pass=True)
    file.write_text(json.dumps(whole.to_dict()))
    assert load_costs(str(file)) == whole


def test_what_is_no_table_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    for text in ("[]", "{", '{"costs": {"draft": null}}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"--costs .*costs\.json: no cost table .*h100-8b-roofline"):
            load_costs(str(file))
    with pytest.raises(ConfigError, match="--costs b300: no cost table"):
        load_costs("b300")


def test_tables_are_in_the_package() -> None:
    assert (files("adaverify.lab.plan") / "tables" / f"{NAME}.json").is_file()
