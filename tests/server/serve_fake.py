"""A server around a fake engine, as its own process: ``python -m tests.server.serve_fake GRACE PACE [TOKENIZER]``."""

from __future__ import annotations

import sys

from tests.server.fake_engine import FakeEngine

from adaverify.config import EngineConfig
from adaverify.server.app import create_app
from adaverify.server.runner import bind, run_server


def main(grace: float, pace: float, tokenizer: str | None = None) -> None:
    engine = FakeEngine(tokens_per_step=1, pace=pace, max_model_len=2048)
    if tokenizer is not None:
        from transformers import AutoTokenizer

        engine.tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        engine.config = EngineConfig(model=tokenizer)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    run_server(create_app(engine, ["fake"]), listener, grace, on_ready=lambda: print(port, flush=True))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:])
