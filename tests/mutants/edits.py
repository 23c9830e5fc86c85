"""Edits of definitions, found by their names wherever they stand in the package.

An edit of syntax has an expression or statements, before and after; with nothing after, the statements go. They are
compared as syntax trees: layout and comments don't count. ``...`` stands for what is there and stays: one expression,
or any number of statements, elements or arguments (``**...`` for those with a name).

An edit of text is of what one string has in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any, TypeAlias, TypeGuard

from tests.mutants.catalogue import Change
from tests.mutants.trees import ROOT

_Nodes: TypeAlias = list[Any]
_Edit: TypeAlias = tuple[_Nodes, _Nodes]


def mutated(changes: Iterable[Change], root: Path = ROOT) -> dict[str, str]:
    """Make a mutant's changes; return the files that have them.

    :raises ValueError: a name is not defined in exactly one file, or what is to be edited is not there exactly once,
        or stays as it is.
    :raises SyntaxError: what comes out is no Python, so that any test would fail.
    """
    sources = dict[str, str]()
    for change in changes:
        part, _, name = change.where.rpartition(":")
        files = [file for file in _files(root).get(name, ()) if not part or part in Path(file).with_suffix("").parts]
        if len(files) != 1:
            raise ValueError(f"{change.where} is defined in {len(files)} files, not in one: {', '.join(files)}")
        [file] = files
        before = sources.get(file) or (root / file).read_text(encoding="utf-8")
        sources[file] = _edited(before, name, change)
        compile(sources[file], file, "exec")
    return sources


@cache
def _files(root: Path) -> dict[str, list[str]]:
    """In which files each name is defined."""
    files = dict[str, list[str]]()
    for path in sorted((root / "offsetstore").rglob("*.py")):
        for name in dict(_definitions(ast.parse(path.read_bytes()).body)):
            files.setdefault(name, []).append(path.relative_to(root).as_posix())
    return files


def _definitions(block: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for node in block:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name, node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name, node
            case ast.ClassDef(name=name, body=body):
                yield prefix + name, node
                yield from _definitions(body, f"{prefix}{name}.")
            case _:
                pass


def _edited(source: str, name: str, change: Change) -> str:
    nodes = [inner for one, node in _definitions(ast.parse(source).body) if one == name for inner in ast.walk(node)]
    # An f-string is one node here: Python 3.11 does not know where its parts are.
    parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node}
    whole = [node for node in nodes if node not in parts]
    edits = [*(_text_edits if change.in_text else _syntax_edits)(whole, change)]
    if len(edits) != 1:
        raise ValueError(f"{change.where} has this {len(edits)} times, not once:\n{change.old}")
    old, new = edits[0]
    if change.old == change.new or ([*map(ast.dump, old)] == [*map(ast.dump, new)] and not change.in_text):
        raise ValueError(f"{change.where} stays as it is:\n{change.old}")
    return _written(source, old, new)


def _text_edits(nodes: _Nodes, change: Change) -> Iterator[_Edit]:
    for node in nodes:
        for part in ast.walk(node) if isinstance(node, (ast.Constant, ast.JoinedStr)) else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield from [([node], [node])] * part.value.count(change.old)
                part.value = part.value.replace(change.old, change.new)


def _syntax_edits(nodes: _Nodes, change: Change) -> Iterator[_Edit]:
    old: _Nodes
    new: _Nodes
    old, new = (ast.parse(side).body for side in (change.old, change.new))
    match old, new:
        case [ast.Expr(value=before)], [ast.Expr(value=after)]:
            old, new = [before], [after]
            places = [[node] for node in nodes if isinstance(node, ast.expr)]
        case _:
            blocks = [getattr(node, name, None) for node in nodes for name in ("body", "orelse", "finalbody")]
            places = [
                block[begin : end + 1]
                for block in blocks
                if _is_list(block)
                for begin in range(len(block))
                for end in range(begin, len(block))
            ]
    for place in places:
        kept = _match(old, place)
        if kept is not None:
            yield place, _Filling(kept).visit(ast.Module(new, [])).body


def _match(old: Any, found: Any) -> _Nodes | None:
    """Tell what each ``...`` stands for, if what was found is as expected."""
    if _is_list(old):
        return _match_list(old, found) if _is_list(found) else None
    if _is_open(old):
        return [found]
    if type(old) is not type(found):
        return None
    if not isinstance(old, ast.AST):
        return [] if old == found else None
    kept: _Nodes = []
    for field in old._fields:
        inner = _match(getattr(old, field, None), getattr(found, field, None))
        if inner is None:
            return None
        kept += inner
    return kept


def _match_list(old: _Nodes, found: _Nodes) -> _Nodes | None:
    if not old:
        return None if found else []
    for length in range(len(found) + 1) if _is_open(old[0]) else (1,) if found else ():
        first = [found[:length]] if _is_open(old[0]) else _match(old[0], found[0])
        rest = None if first is None else _match_list(old[1:], found[length:])
        if first is not None and rest is not None:
            return first + rest
    return None


def _is_open(node: Any) -> bool:
    match node:
        case ast.Constant(value=value):
            return value is ...
        case ast.Expr(value=value) | ast.keyword(arg=None, value=value):
            return _is_open(value)
        case _:
            return False


class _Filling(ast.NodeTransformer):
    """Puts what was kept in the place of each ``...``."""

    def __init__(self, kept: _Nodes) -> None:
        self._kept = iter(kept)

    def visit(self, node: ast.AST) -> Any:
        return next(self._kept) if _is_open(node) else self.generic_visit(node)


def _is_list(value: object) -> TypeGuard[_Nodes]:
    return isinstance(value, list)


def _written(source: str, old: _Nodes, new: _Nodes) -> str:
    """Put nodes in the place of others, on as many lines, so that tracebacks tell the right ones."""
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: old[0].lineno - 1])) + old[0].col_offset
    end = sum(map(len, lines[: old[-1].end_lineno - 1])) + old[-1].end_col_offset
    code = "\n".join(map(ast.unparse, new))
    rest = "\n" * (old[-1].end_lineno - old[0].lineno - code.count("\n"))
    put = f"({code}{rest})" if isinstance(old[0], ast.expr) else indent(code, " " * old[0].col_offset).lstrip() + rest
    before = source.encode()
    return (before[:begin] + put.encode() + before[end:]).decode()
