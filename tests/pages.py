"""The listings of a page in Markdown, and what they print."""

import pathlib
import re
from typing import NamedTuple

from tests import real_models, reference
from tests.tokenizers import tiny

VARIES = "<!-- varies -->"  # in front of an output: times, or what depends on the machine
_BLOCK = re.compile(rf"({re.escape(VARIES)}\s*)?^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_MARK = "\n-- listing {} --"


class Listing(NamedTuple):
    code: str
    output: str | None  # None where it varies, or is not shown


def listings(page: pathlib.Path, kind: str = "python") -> list[Listing]:
    """The blocks of a kind, each with the plain block behind it."""
    blocks, made = _BLOCK.findall(page.read_text(encoding="utf-8")), []
    for i, (_, info, code) in enumerate(blocks):
        if info == kind:
            varies, after, output = blocks[i + 1] if i + 1 < len(blocks) else ("", kind, "")
            made.append(Listing(code, None if varies or after not in ("", "text") else output))
    return made


def script(found: list[Listing], folder: pathlib.Path) -> str:
    """All of them as one script, with the checkpoints of this machine; it says where each begins."""
    parts = [f"print({_MARK.format(i)!r}, flush=True)\n{each.code}" for i, each in enumerate(found)]
    return _with_local_files("\n\n".join(parts), folder)


def differences(found: list[Listing], printed: str) -> list[tuple[str, str]]:
    """What was to be printed and what was, for each listing where they differ. Decimals and blanks do not count."""
    said = re.split(r"^-- listing \d+ --\n", printed, flags=re.MULTILINE)[1:]
    pairs = [(each.output, text) for each, text in zip(found, said, strict=True) if each.output is not None]
    return [pair for pair in pairs if _plain(pair[0]) != _plain(pair[1])]


def _plain(text: str) -> str:
    return " ".join(re.sub(r"\d+\.\d+", "0.0", text).split())


def _with_local_files(code: str, folder: pathlib.Path) -> str:
    for name, make in (
        ("openai-community/gpt2", lambda: _tiny_gpt2(folder)),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", real_models.smollm2),
        ("google/flan-t5-small", real_models.flan_t5_small),
        ("openai/whisper-tiny.en", real_models.whisper_tiny_en),
        ("speech.wav", real_models.speech),
    ):
        code = code.replace(name, str(make())) if name in code else code
    return code


def _tiny_gpt2(folder: pathlib.Path) -> str:
    path = reference.folder("gpt2", folder)
    tiny().save_pretrained(path)
    return path
