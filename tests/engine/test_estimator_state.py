"""A server that starts again goes on with what it had learned."""

from __future__ import annotations

import asyncio
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from adaverify import SamplingParams
from adaverify.engine import engine as engine_module
from adaverify.engine.async_engine import AsyncEngine
from adaverify.errors import ConfigError
from support import Pair

PARAMS = SamplingParams(temperature=1.0, max_tokens=12, seed=3, ignore_eos=True)


def learned(llm):
    return llm.engine.speculation.estimator.labels.sums


def test_a_restarted_engine_starts_where_the_last_one_ended(pair, prompts, tmp_path):
    file = tmp_path / "estimator.safetensors"
    first = pair.llm(speculative={"estimator_state": str(file)})
    assert not file.exists()
    first.generate(prompts, PARAMS)
    assert learned(first).sum() > 0
    second = pair.llm(speculative={"estimator_state": str(file)})
    torch.testing.assert_close(learned(second), learned(first))
    assert second.engine.speculation.estimator.num_refits == first.engine.speculation.estimator.num_refits
    assert learned(pair.llm()).sum() == 0


def test_a_server_keeps_it_when_it_stops_and_now_and_then(pair, prompts, tmp_path, monkeypatch):
    file = tmp_path / "estimator.safetensors"
    llm = pair.llm(speculative={"estimator_state": str(file)})

    async def serve():
        server = AsyncEngine(llm.engine)
        await server.start()
        async for _ in server.generate(prompts[0], PARAMS, "a"):
            pass
        assert not file.exists()
        await server.shutdown(grace=0)
        assert file.exists()

    asyncio.run(serve())
    file.unlink()
    monkeypatch.setattr(engine_module, "SAVE_INTERVAL", 2)
    llm.engine.add_request(prompts[0], PARAMS, "b")
    for _ in range(3):
        llm.engine.step()
    assert file.exists()


def test_a_state_learned_from_other_drafts_is_refused_by_what_differs(pair, prompts, tmp_path):
    file = str(tmp_path / "estimator.safetensors")
    pair.llm(speculative={"estimator_state": file}).generate(prompts, PARAMS)
    with pytest.raises(ConfigError, match="num_speculative_tokens 3, here 2"):
        pair.llm(k=2, speculative={"estimator_state": file})
    with pytest.raises(ConfigError, match="estimator 'robust', here 'paper'"):
        pair.llm(speculative={"estimator_state": file, "estimator": "paper"})
    other = shutil.copytree(pair.target, tmp_path / "other-target")
    with pytest.raises(ConfigError, match=f"target '{pair.target.name}', here 'other-target'"):
        Pair(other, pair.drafter).llm(speculative={"estimator_state": file})


def test_a_damaged_file_and_a_missing_folder_are_named(pair, tmp_path):
    file = tmp_path / "estimator.safetensors"
    file.write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"estimator.safetensors is not a state that adaverify wrote"):
        pair.llm(speculative={"estimator_state": str(file)})
    with pytest.raises(ConfigError, match="does not exist; make it first"):
        pair.llm(speculative={"estimator_state": str(tmp_path / "none" / "x")})


def test_the_state_of_another_version_is_named_with_a_remedy(pair, prompts, tmp_path):
    file = tmp_path / "estimator.safetensors"
    pair.llm(speculative={"estimator_state": str(file)}).generate(prompts, PARAMS)
    with safe_open(file, framework="pt") as older:
        metadata = older.metadata()
        tensors = {name: older.get_tensor(name) for name in older.keys() if name != "shift"}  # noqa: SIM118
    save_file(tensors, file, metadata)
    with pytest.raises(ConfigError, match=r"safetensors is of another version's estimator .*shift.*remove it"):
        pair.llm(speculative={"estimator_state": str(file)})
