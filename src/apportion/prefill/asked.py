"""Files of questions, and the documents that they are asked of."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from apportion.errors import InputError, option
from apportion.files import json_lines

_WANTED = 'a question, such as {"question": "Who wrote it?"}'


def read_questions(path: str | Path) -> list[tuple[str, str | None]]:
    """Questions of a JSONL file, each with the document that it is about; None: all of them.

    A line is `{"question": "…"}`, or has `"document"` too: its path, or the name of its file.

    Raises:
        InputError: no such file, or a line that is none of these, by its number.
    """
    found = [_question(value, place) for place, value in json_lines(path, _WANTED)]
    if not found:
        raise InputError(f"{path}: expected a JSON object a line with {_WANTED}, got none")
    return found


def _question(value: Mapping[str, Any], place: str) -> tuple[str, str | None]:
    question, document = value.get("question"), value.get("document")
    if not isinstance(question, str) or not question.strip():
        raise InputError(f"{place}: expected {_WANTED}, got question={question!r}")
    if document is not None and not isinstance(document, str):
        raise InputError(f"{place}: expected a path as document, got {document!r}")
    try:
        question.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: expected a question in UTF-8, got {question!r}") from error
    return question, document


def find_documents(patterns: Iterable[str]) -> list[str]:
    """Files that patterns such as `"papers/*.txt"` name, in order, each once.

    A pattern's own files are sorted; what exists under the very name is taken as it is.

    Raises:
        InputError: a pattern that names no file.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        if Path(pattern).is_file():
            found[pattern] = None
            continue
        own = [name for name in sorted(glob.glob(pattern, recursive=True)) if Path(name).is_file()]
        if not own:
            raise InputError(
                f"expected {option('documents')} that name files, such as 'papers/*.txt', got "
                f"{pattern!r}, which names none"
            )
        found |= dict.fromkeys(own)
    return list(found)


def questions_of(
    documents: Sequence[str], questions: Sequence[tuple[str, str | None]]
) -> Mapping[str, list[str]]:
    """By document, what it is asked, in the order of the questions.

    Raises:
        InputError: a question of a document that is not there, or of several of that name.
    """
    asked: dict[str, list[str]] = {path: [] for path in documents}
    for question, about in questions:
        own = list(documents) if about is None else [
            path for path in documents if about == path
        ] or [path for path in documents if Path(path).name == about]  # fmt: skip
        if not own or (about is not None and len(own) > 1):
            raise InputError(
                f"expected document {about!r} of the question {question!r} among the documents, "
                f"found it {len(own)} times; give its path as {option('documents')} has it"
            )
        for path in own:
            asked[path].append(question)
    return asked
