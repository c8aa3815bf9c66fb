"""The model card of a trained drafter: where it comes from, how it is served, and what the target accepts of it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from adaverify.errors import ConfigError
from adaverify.training.answers import Answer, read_answers
from adaverify.training.batches import split
from adaverify.training.checkpoint import RECORD, WEIGHTS
from adaverify.training.hidden import Sample
from adaverify.training.run import HELD_OUT_SHARE

CARD, MAX_DEPTH, MAX_TOKENS, CONCURRENCY = "README.md", 7, 128, 16
LAWS = {"0": {"temperature": 0.0}, "1": {"temperature": 1.0, "top_p": 0.95}}
PACKAGES = ("adaverify", "torch", "transformers", "speculators")


def write_card(
    folder: Path, target: str, cache: Path, command: str, num_prompts: int, dtype: str = "auto", device: str = "auto"
) -> None:
    """Write ``README.md`` beside a checkpoint, and add to the record of its training what the card says besides.

    Parameters
    ----------
    folder : Path
        Of the checkpoint, with ``training.json``.
    target : str
        Folder or hub name to load the target from.
    cache : Path
        Folder with ``answers.jsonl``, for held-out prompts.
    command : str
        That trained the drafter; what an earlier card has said of it stays.
    num_prompts : int
        Held-out prompts on which acceptance is measured; 0 skips measuring.

    Raises
    ------
    ConfigError
        There is no record, or acceptance is to be measured and there is no held-out prompt.
    """
    path = folder / RECORD
    if not path.is_file():
        raise ConfigError(f"{folder} holds no {RECORD}: it is not a drafter of adaverify train")
    record = json.loads(path.read_text())
    # a card written again must not date the weights anew
    record["command"] = without_folders(record.get("command", command))
    record.setdefault("commit", commit())
    record.setdefault("versions", {name: _version(name) for name in PACKAGES})
    record["checkpoint_bytes"] = (folder / WEIGHTS).stat().st_size
    if num_prompts:
        prompts = held_out_prompts(read_answers(cache / "answers.jsonl"), num_prompts)
        record["measured"] = _measure(folder, target, record, prompts, dtype, device)
    path.write_text(json.dumps(record, indent=1) + "\n")
    (folder / CARD).write_text(card_text(folder.name, record))


def held_out_prompts(answers: Sequence[Answer], num_prompts: int) -> list[list[int]]:
    """The first distinct prompts that no training has seen, by the ids' split and by their tokens.

    Raises
    ------
    ConfigError
        There is none.
    """
    # the split looks at nothing but ids
    training, held_out = split(cast(Sequence[Sample], answers), HELD_OUT_SHARE)
    # user turns that the target wrote have one and the same prompt, the template's opening
    seen = {tuple(answer.prompt_token_ids) for answer in cast(Sequence[Answer], training)}
    prompts: list[list[int]] = []
    for answer in cast(Sequence[Answer], held_out):
        if tuple(answer.prompt_token_ids) not in seen:
            seen.add(tuple(answer.prompt_token_ids))
            prompts.append(answer.prompt_token_ids)
    if not prompts:
        raise ConfigError(
            f"none of the {len(answers)} answers has a prompt that was held out; give more answers, or measure "
            "nothing with --measure-prompts 0"
        )
    return prompts[:num_prompts]


def measured_depth(record: dict[str, Any]) -> int:
    """Draft positions that are measured: a block, or as many where an autoregressive drafter goes on for ever."""
    in_block = len(record["curve"][-1]["acceptance"])
    return MAX_DEPTH if record["method"] in ("eagle3", "mtp") else min(MAX_DEPTH, in_block)


def _measure(
    folder: Path, target: str, record: dict[str, Any], prompts: list[list[int]], dtype: str, device: str
) -> dict[str, Any]:
    """Acceptance in our own engine, every draft verified."""
    from adaverify.engine.llm import LLM
    from adaverify.lab.acceptance import measure_acceptance
    from adaverify.sampling.params import SamplingParams

    depth = measured_depth(record)
    speculative = {"method": record["method"], "model": str(folder.resolve()), "num_speculative_tokens": depth}
    llm = LLM(target, speculative, max_num_seqs=CONCURRENCY, dtype=dtype, device=device)
    runs = {}
    for name, law in LAWS.items():
        measured = measure_acceptance(llm, prompts, SamplingParams(**law, max_tokens=MAX_TOKENS, seed=0))  # type: ignore[arg-type]
        # time is left out: whatever else the machine does while it trains would be in it
        runs[name] = {k: v for k, v in measured.to_dict().items() if k not in ("seconds", "tokens_per_second")}
    return {
        "prompts": len(prompts),
        "max_tokens": MAX_TOKENS,
        "num_speculative_tokens": depth,
        "dtype": llm.engine.config.dtype,
        "by_temperature": runs,
    }


def card_text(name: str, record: dict[str, Any]) -> str:
    """The card as Markdown.

    Parameters
    ----------
    name : str
        Of the checkpoint's folder.
    record : dict
        As in ``training.json``.
    """
    target, method = record["target"], record["method"]
    serve = {
        "method": method,
        "model": name,
        "num_speculative_tokens": measured_depth(record),
        "enable_adaptive_verification": True,
    }
    data = record["data"]
    versions = ", ".join(f"{package} {number or 'absent'}" for package, number in record["versions"].items())
    start = f" It began with the weights of `{record['init_from']}`." if record.get("init_from") else ""
    stages = record.get("earlier_stages", [])
    minutes = (record["seconds"] + sum(stage["seconds"] for stage in stages)) / 60
    before = f" With what is below, {minutes:.1f} minutes in all." if stages else ""
    sources = _table(
        ["source of the prompts", "answers", "answer tokens"],
        [[source, c["answers"], c["answer_tokens"]] for source, c in data["sources"].items()],
    )
    return f"""# {name}

A drafter (method `{method}`) for speculative decoding with the target `{target}`, trained by adaverify on the target's
own answers. It is of no use with another target, nor alone.{start}

## Serving

In the folder that holds `{name}`:

    adaverify serve {target} --speculative-config '{json.dumps(serve)}'

## Data

Answers of the target to the prompts of these sources, at the temperatures that the command names (0 and 1 by default);
{data["answer_tokens"]:,} tokens of answers, {data["tokens"]:,} with their prompts. Held out: {data["held_out_answers"]}
answers, apart by prompt.

{sources}

## Training

    {record["command"]}

{record["seconds"] / 60:.1f} minutes, {record["steps"]:,} steps. Commit {record["commit"]}; {versions}.{before}
Size of the checkpoint: {record["checkpoint_bytes"] / 1e6:.1f} MB.
{_stages(stages)}
Learning curve on the held-out answers; agreement is that of the most likely draft with the target's, among the tokens
that can be drafted, by position, the positions before it given:

{_curve(record["curve"])}

## Acceptance, measured

{_measured(record.get("measured"))}

## Licence

These weights were made by the adaverify project and are licensed under Apache-2.0. The target has a licence of its
own, which this project does not know to be the same.
"""


def _stages(stages: list[dict[str, Any]]) -> str:
    if not stages:
        return ""
    rows = [
        [s["method"], f"{s['seconds'] / 60:.1f}", f"{s['tokens']:,}", s["commit"], f"`{s['command']}`"] for s in stages
    ]
    table = _table(["method", "minutes", "tokens seen", "commit", "command"], rows)
    return f"\nThe weights it began with were trained by these runs, in this order:\n\n{table}\n"


def _curve(curve: list[dict[str, Any]]) -> str:
    # the end of a run is evaluated even if a point of the curve fell on it
    points = {point["step"]: point for point in curve}.values()
    rows = [
        [f"{p['tokens']:,}", f"{p['seconds'] / 60:.1f}", f"{p['loss']:.3f}", _shares(p["acceptance"])] for p in points
    ]
    return _table(["tokens seen", "minutes", "loss", "agreement by position"], rows)


def _measured(measured: dict[str, Any] | None) -> str:
    if measured is None:
        return "Not measured."
    rows = [
        [
            f"{temperature}, top-p {LAWS[temperature].get('top_p', 1)}",
            _shares(run["accepted_given_reached"]),
            _shares(run["accepted_by_rounds"]),
            f"{run['accepted_per_round']:.2f}",
            f"{run['rounds']:,}",
        ]
        for temperature, run in measured["by_temperature"].items()
    ]
    headings = ["temperature", "accepted of those reached", "accepted of all rounds", "accepted per round", "rounds"]
    return (
        f"In adaverify's engine, every draft verified: {measured['prompts']} prompts that were held out of training, "
        f"at most\n{measured['max_tokens']} tokens each, {measured['num_speculative_tokens']} drafts a round, "
        f"{measured['dtype']}; by position:\n\n{_table(headings, rows)}"
    )


def _table(headings: list[str], rows: list[list[Any]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _shares(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.2f}" for value in values)


def without_folders(command: str) -> str:
    """A command line in which paths outside the working folder are cut to their last component."""

    def cut(word: str) -> str:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        return flag + equals + (Path(value).name if re.match(r"[/~]|\.\.?/", value) else value)

    return shlex.join(cut(word) for word in shlex.split(command))


def commit() -> str:
    """``git describe`` of the source tree, ``unknown`` outside of one."""
    root = Path(__file__).resolve().parents[3]

    def git(*arguments: str) -> str:
        try:
            command = ["git", "-C", str(root), *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    # an installed package may lie inside some other repository
    inside = Path(git("rev-parse", "--show-toplevel")) == root
    return (git("describe", "--always", "--dirty") if inside else "") or "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
