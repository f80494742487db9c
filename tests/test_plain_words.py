"""Sentences that a person reads once: no riddle at their start, and not over 30 words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from typer.main import get_command

import fedmate
from fedmate.cli import app

ROOT = Path(fedmate.__file__).parent
REPOSITORY = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in REPOSITORY.glob("docs/*.md")),
]
MOST_WORDS = 30
RIDDLES = ("What", "Whoever", "Nobody", "Somebody", "Whatever")

GAP = "\N{WHITE SQUARE}"
"""Stands for a value in a worded error, and for code in a page."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of running text; each item of a list and each cell of a table stands alone."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    # A value in backticks is one word; a link is its text.
    text = re.sub(r"(`+)[^`].*?\1", GAP, text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^#+ .*$", "\n", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|(?:^|\n)\s*(?:[-*>]|\d+\.)\s|\||:\n", text):
        yield from (part for part in re.split(r"(?<=[.!?])\s+", " ".join(block.split())) if part)


def broken(text: str) -> list[str]:
    """Return the sentences that a person would have to read twice."""
    found = []
    for sentence in sentences(text):
        # Figures are no words: a list of them is read as a table is.
        words = [word.strip("*(") for word in sentence.split() if re.search(rf"[A-Za-z{GAP}]", word)]
        if len(words) > MOST_WORDS or (words and words[0] in RIDDLES):
            found.append(sentence)
    return found


def message(node: ast.expr) -> str:
    """Return the constant text of an expression, with a gap for each value in it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(message(value) for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return message(left) + message(right)
        case _:
            return GAP


def errors(source: str) -> Iterator[str]:
    """Yield the text of every worded error in a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from (message(argument) for argument in node.exc.args if message(argument) != GAP)


def helps(command: click.Command, name: str = "fedmate") -> Iterator[tuple[str, str]]:
    """Yield the help text of a command, of its options and of the commands below it."""
    yield name, command.help or ""
    for option in command.params:
        yield f"{name} --{option.name}", getattr(option, "help", None) or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            child = command.get_command(context, below)
            assert child is not None
            yield from helps(child, f"{name} {below}")


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_plain(page: str) -> None:
    if not (path := REPOSITORY / page).exists():
        pytest.skip("this installation has no pages")
    assert broken(path.read_text()) == []


@pytest.mark.parametrize("path", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")))
def test_errors_are_plain(path: str) -> None:
    assert [sentence for text in errors((ROOT / path).read_text()) for sentence in broken(text)] == []


def test_help_is_plain() -> None:
    found = {name: broken(text) for name, text in helps(get_command(app))}
    assert len(found) > 50
    assert {name: sentences for name, sentences in found.items() if sentences} == {}
