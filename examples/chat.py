"""Chat with a running server: ``adaverify serve`` in one terminal, ``python examples/chat.py`` in another."""

from __future__ import annotations

import sys

from openai import OpenAI


def main(base_url: str = "http://127.0.0.1:8000/v1") -> None:
    """Read lines, stream the answers; an empty line ends the conversation."""
    client = OpenAI(base_url=base_url, api_key="none")
    model = client.models.list().data[0].id
    print(f"Talking to {model}; an empty line ends.")
    messages = []
    while line := input("> ").strip():
        messages.append({"role": "user", "content": line})
        answer = ""
        for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=256, stream=True):
            text = chunk.choices[0].delta.content or ""
            answer += text
            print(text, end="", flush=True)
        print()
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main(*sys.argv[1:])
