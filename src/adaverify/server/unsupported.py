"""Fields whose effect we cannot give: asking for it is an error, leaving them at rest is not."""

from __future__ import annotations

import json
from typing import Any

from adaverify.errors import InvalidRequestError

_OFF: tuple[Any, ...] = (None, False, [], {}, "")

NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "echo": _OFF,
    "best_of": (None, 1),
    "suffix": (None, ""),
    "prompt_logprobs": (None,),
    "prompt_embeds": _OFF,
    "use_beam_search": _OFF,
    "length_penalty": (None, 1),
    "truncate_prompt_tokens": (None,),
    "logits_processors": _OFF,
    "response_format": (None, {"type": "text"}),
    "structured_outputs": _OFF,
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json_object": _OFF,
    "guided_decoding_backend": _OFF,
    "guided_whitespace_pattern": _OFF,
    "structural_tag": _OFF,
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "functions": (None, []),
    "function_call": (None, "none"),
    "modalities": (None, ["text"]),
    "audio": _OFF,
    "documents": _OFF,
    "chat_template": (None,),
}


def refuse_unsupported(extra: dict[str, Any]) -> None:
    """Refuse fields that would change the answer in a way this server cannot.

    Parameters
    ----------
    extra : dict
        The fields of a request body that the protocol does not know.

    Raises
    ------
    InvalidRequestError
        Names the first such field and the value that would be accepted.
    """
    for name, value in extra.items():
        neutral = NEUTRAL_VALUES.get(name)
        if neutral is None or any(_same(value, rest) for rest in neutral):
            continue
        accepted = " or ".join(json.dumps(rest) for rest in neutral if rest not in (None, [], {}, ""))
        remedy = f"leave it out or set it to {accepted}" if accepted else "leave it out"
        raise InvalidRequestError(f"{name} is not supported by this server; {remedy}", param=name)


def _same(value: Any, rest: Any) -> bool:
    """Equality as in JSON, where 1 is 1.0 but not true."""
    return value == rest and isinstance(value, bool) == isinstance(rest, bool)
