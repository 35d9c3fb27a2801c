"""The registry of reasoning formats, and the detection of a model's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from enginebay.text.output_events import OutputEventParser
from enginebay.text.reasoning import harmony_parser as harmony
from enginebay.text.reasoning.reasoning_parser import ReasoningParser
from enginebay.text.reasoning.tag_parser import TagReasoningParser, ThoughtTags

NO_REASONING = "none"


@dataclass(frozen=True)
class ReasoningFormat:
    """One way to write thoughts. `markers` are tokens that must stay in the text even if they are special tokens.

    The last four are texts between a thought and a constrained answer: after a thought that ended; after one that is cut
    short; instead of a thought; and before an answer of a model that chose not to think.
    """

    name: str
    tags: tuple[ThoughtTags, ...]  # empty: harmony
    markers: tuple[str, ...]
    after_thought: str
    end_thought: str
    skip_thought: str
    without_thought: str = ""

    def create_parser(self, inner: OutputEventParser | None, prompt_end: str = "") -> ReasoningParser:
        """Return a parser for one output. `prompt_end`: the last tokens of its prompt as text."""
        if not self.tags:
            return harmony.HarmonyReasoningParser(inner, prompt_end)
        return TagReasoningParser(self.tags, inner, self._find_opened(prompt_end))

    def is_opened_by(self, prompt_end: str) -> bool:
        """Return whether the prompt opens the thought."""
        parser = self.create_parser(None, prompt_end)
        return parser.thought_began and not parser.thought_ended

    def is_closed_by(self, prompt_end: str) -> bool:
        """Return whether the prompt ends the thought, so that the output is the answer."""
        if not self.tags:
            return self.create_parser(None, prompt_end).thought_ended
        end = prompt_end.rstrip()
        return any(end.endswith((tags.closing, tags.answer_opening or tags.closing)) for tags in self.tags)

    def find_unclosed(self, text: str) -> str:
        """Return the opening tag of a thought that the text begins and does not end, or ""."""
        for tags in self.tags:
            if text.rfind(tags.opening) > text.rfind(tags.closing):
                return tags.opening
        return ""

    def _find_opened(self, prompt_end: str) -> ThoughtTags | None:
        end = prompt_end.rstrip()
        return next((tags for tags in self.tags if end.endswith(tags.opening)), None)


def _build_tag_format(name: str, *tags: ThoughtTags, markers: tuple[str, ...] = ()) -> ReasoningFormat:
    first = tags[0]
    answer = f"\n\n{first.answer_opening}"
    return ReasoningFormat(
        name, tags, markers or tuple(tag for pair in tags for tag in (pair.opening, pair.closing)),
        answer, f"\n{first.closing}{answer}", f"{first.opening}\n\n{first.closing}{answer}",
    )  # fmt: skip


_FINAL = f"{harmony.CHANNEL}final{harmony.MESSAGE}"
_NEXT_FINAL = f"{harmony.START}assistant{_FINAL}"
_COHERE = ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")

REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        "think": _build_tag_format("think", ThoughtTags("<think>", "</think>")),
        "mistral": _build_tag_format("mistral", ThoughtTags("[THINK]", "[/THINK]")),
        "harmony": ReasoningFormat(
            "harmony", (), harmony.MARKERS, _NEXT_FINAL, f"<|end|>{_NEXT_FINAL}", _FINAL, without_thought=_FINAL
        ),
        "granite": _build_tag_format(
            "granite",
            ThoughtTags("<think>", "</think>", "<response>", "</response>"),
            ThoughtTags("Here is my thought process:", "Here is my response:"),
            ThoughtTags("Here's my thought process:", "Here's my response:"),
            markers=("<think>", "</think>", "<response>", "</response>"),
        ),
        "cohere": _build_tag_format("cohere", ThoughtTags(*_COHERE), markers=_COHERE),
        "gemma": _build_tag_format(
            "gemma", ThoughtTags("<|channel>thought", "<channel|>"), markers=("<|channel>", "<channel|>")
        ),
        "seed": _build_tag_format("seed", ThoughtTags("<seed:think>", "</seed:think>")),
    }
)

# (format, texts of which one must be in the template). The first match wins.
_DETECTION_RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>analysis",)),
    ("gemma", ("<|channel>thought",)),
    ("mistral", ("[THINK]",)),
    ("cohere", ("<|START_THINKING|>",)),
    ("granite", ("<response></response>", "Here is my thought process:", "Here's my thought process:")),
    ("seed", ("<seed:think>", "seed:think")),
    ("think", ("<think>", "</think>")),
)


def detect_reasoning_format(template: str | None) -> str:
    """Return the reasoning format of a model by its chat template; "none" if it shows none."""
    for name, signs in _DETECTION_RULES:
        if template and any(sign in template for sign in signs):
            return name
    return NO_REASONING
