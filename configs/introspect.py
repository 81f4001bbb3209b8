"""Reads the schema itself: which fields a config has, what each may hold, and the docstring under it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types
from pydantic.fields import FieldInfo

Annotation = Any
"""What stands behind the colon of a field: a type, a union, an ``Annotated`` or a ``Literal``."""

REQUIRED = dataclasses.MISSING
NAMES = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
}


@dataclass(frozen=True)
class Field:
    """One key of a config."""

    name: str
    annotation: Annotation
    default: Any
    """``REQUIRED`` where there is none."""
    doc: str


@cache
def fields_of(kind: type) -> dict[str, Field]:
    """Fields of config class ``kind``, by name, in the order of the schema."""
    hints = get_type_hints(kind, include_extras=True)
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            docs.update(_docs(base))
    return {
        item.name: Field(item.name, hints[item.name], _default(item), docs.get(item.name, ""))
        for item in dataclasses.fields(kind)
    }


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    value = item.default
    if isinstance(value, FieldInfo):
        return REQUIRED if value.is_required() else value.get_default(call_default_factory=True)
    return value


def _docs(kind: type) -> dict[str, str]:
    """The string literal under each annotated assignment of the class body."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for statement, follower in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant):
            docs[statement.target.id] = " ".join(str(follower.value.value).split())
    return docs


def _origin(annotation: Annotation) -> Any:
    return get_origin(annotation)


def split(annotation: Annotation) -> tuple[Annotation, list[Any]]:
    """The bare type and the constraints around it."""
    constraints: list[Any] = []
    while _origin(annotation) is Annotated:
        annotation, *extra = get_args(annotation)
        for item in extra:
            constraints += item.metadata if isinstance(item, FieldInfo) else [item]
    return annotation, constraints


def members(annotation: Annotation) -> list[Annotation]:
    """The alternatives of a union; the annotation itself where it is none."""
    bare, _ = split(annotation)
    if _origin(bare) in (Union, types.UnionType):
        return [inner for item in get_args(bare) for inner in members(item)]
    return [annotation]


def components(annotation: Annotation) -> list[type]:
    """The config classes that a value of this annotation can be."""
    bare = (split(item)[0] for item in members(annotation))
    return [item for item in bare if isinstance(item, type) and dataclasses.is_dataclass(item)]


def element(annotation: Annotation) -> Annotation | None:
    """What a list holds; None for anything else."""
    for item in members(annotation):
        bare, _ = split(item)
        if _origin(bare) is list:
            return get_args(bare)[0]
    return None


def choices(annotation: Annotation) -> list[str]:
    """The words that a ``Literal`` allows, as they are written in a config."""
    return [
        str(word)
        for item in members(annotation)
        if _origin(split(item)[0]) is Literal
        for word in get_args(split(item)[0])
    ]


def tag(kind: type) -> tuple[str, str] | None:
    """The key and the word by which a config class is chosen among its like, for example ``("kind", "ray")``."""
    for name in ("kind", "objective"):
        found = fields_of(kind).get(name)
        if found is not None and len(choices(found.annotation)) == 1:
            return name, choices(found.annotation)[0]
    return None


def tags(annotation: Annotation) -> list[str]:
    """The words that choose among the config classes of a union."""
    return [chosen[1] for chosen in map(tag, components(annotation)) if chosen is not None]


def describe(annotation: Annotation) -> str:
    """What the field may hold, in words: ``number above 0 and at most 1``, ``one of token, chunk``."""
    return " or ".join(_describe_member(item) for item in members(annotation))


def _describe_member(annotation: Annotation) -> str:
    bare, constraints = split(annotation)
    if _origin(bare) is Literal:
        words = choices(bare)
        return words[0] if len(words) == 1 else "one of " + ", ".join(words)
    if _origin(bare) is list:
        inner = get_args(bare)[0]
        least = max(
            (item.min_length for item in constraints if isinstance(item, annotated_types.MinLen)), default=0
        )
        return f"list{f' (at least {least})' if least else ''} of {describe(inner)}"
    if _origin(bare) is dict or bare is dict:
        return "mapping"
    if isinstance(bare, type) and dataclasses.is_dataclass(bare):
        chosen = tag(bare)
        return f"{chosen[1]} section" if chosen else "section"
    return NAMES[bare] + _bounds(constraints)


def _bounds(constraints: list[Any]) -> str:
    words = []
    for item in constraints:
        if isinstance(item, annotated_types.Gt):
            words.append(f"above {item.gt}")
        elif isinstance(item, annotated_types.Ge):
            words.append(f"at least {item.ge}")
        elif isinstance(item, annotated_types.Lt):
            words.append(f"below {item.lt}")
        elif isinstance(item, annotated_types.Le):
            words.append(f"at most {item.le}")
    return " " + " and ".join(words) if words else ""


def walk(kind: type, prefix: str = "", instance: object | None = None) -> Iterator[tuple[str, type, Field]]:
    """Every key under ``kind`` as (dotted path, owner class, field); alternatives of a union one after the other.

    Where a section's default is an ``instance`` with values of its own, these are the fields' defaults.
    """
    for name, item in fields_of(kind).items():
        default = item.default if instance is None else getattr(instance, name)
        path = f"{prefix}{name}"
        yield path, kind, dataclasses.replace(item, default=default)
        for component in components(item.annotation):
            chosen = default if type(default) is component else None
            yield from walk(component, f"{path}.", chosen)
