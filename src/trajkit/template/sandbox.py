"""A template's source into a program, and a program into text: what it may do, and how much.

The environment is the one of `transformers` (5.24): the same filters, globals and extensions, so
the text is the same to the last byte. What is added are limits; nothing is taken away.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
from jinja2.exceptions import SecurityError

from trajkit.errors import InputError, Place, RefusedError, TrajkitError
from trajkit.safe.text import shorten

MAX_TEXT = 64 << 20
"""Characters a render may have; a conversation of a million tokens has about four million."""
MAX_LOOPS = 10_000_000
"""Rounds of loops, numbers of `range`, and calls that one render may have together."""
MAX_SECONDS = 60.0

_COUNTED = "trajkit_counted"
_HINT = "look at the template: it is run as a program"
_TROUBLE = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    *(RuntimeError, MemoryError),
)
"""What a program inside the sandbox can raise: its own words, or those of the Python below it."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`: the body, as if the tags were not there."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return the node of a block that gives back its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(jinja2.utils.Namespace):
    """jinja2's `namespace`, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _no_underscore(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _no_underscore(name)
        super().__setitem__(name, value)


class _Dict:
    """`dict` as a template sees it: a maker of dicts and nothing else."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Return a dict of some keys and one value."""
        return dict.fromkeys(*args, **kwargs)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment templates run in; one render at a time."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        self.n_loops = 0
        self.filters["tojson"] = _tojson
        self.filters[_COUNTED] = self._counted
        self.globals.update(
            {
                "raise_exception": _raise_exception,
                "strftime_now": _strftime_now,
                "dict": _Dict(),
                "namespace": _Namespace,
                "range": self._range,
            }
        )

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Return `left * right` or `left ** right`, when it is not beyond all measure."""
        sized, count = (left, right) if hasattr(left, "__len__") else (right, left)
        if operator == "*" and hasattr(sized, "__len__") and isinstance(count, int):
            too_much = len(sized) * count > MAX_TEXT
        else:
            too_much = operator == "**" and max(_magnitude(left), _magnitude(right)) > 10_000
        if too_much:
            raise OverflowError("a product beyond all measure")
        return super().call_binop(context, operator, left, right)

    def call(
        __self,  # noqa: N805 - the arguments of a template's call may be named self
        __context: jinja2.runtime.Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Return what a call gives; each counts, for macros can call themselves twice."""
        __self._count(1)
        return super().call(__context, __obj, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        """Return the tree of a template, with the rounds of its loops counted."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(jinja2.nodes.For):
            line = loop.iter.lineno
            loop.iter = jinja2.nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=line)
            loop.iter.set_environment(self)
        return tree

    @jinja2.pass_context  # so that it is not done when the template is compiled
    def _counted(self, _: jinja2.runtime.Context, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._count(1)
            yield value

    def _range(self, *args: int) -> range:
        numbers = jinja2.sandbox.safe_range(*args)
        self._count(len(numbers))
        return numbers

    def _count(self, n: int) -> None:
        self.n_loops += n
        if self.n_loops > MAX_LOOPS:
            raise OverflowError(f"more than {MAX_LOOPS:,} rounds of loops and calls")


def compile_template(source: str, place: Place) -> jinja2.Template:
    """Return a template as a program of its own sandbox.

    Raises:
        InputError: T105 when it is no jinja2 template.
    """
    try:
        return Sandbox().from_string(source)
    except (jinja2.TemplateSyntaxError, RecursionError, SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None)
        raise InputError(
            "T105",
            f"the chat template cannot be compiled: {shorten(str(problem), 200)}",
            place=Place(file=place.file, line=line),
            hint="it must be a jinja2 template as `transformers` reads them",
        ) from None


def run(program: jinja2.Template, variables: Mapping[str, Any], place: Place) -> str:
    """Return what a template writes.

    Raises:
        InputError: T106 when the template refuses the conversation or fails on it.
        RefusedError: R105 when it reaches out of the sandbox or goes over a limit.
    """
    environment = program.environment
    if isinstance(environment, Sandbox):
        environment.n_loops = 0
    pieces: list[str] = []
    size, deadline = 0, time.monotonic() + MAX_SECONDS
    try:
        for piece in program.generate(**variables):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_TEXT:
                raise OverflowError(f"more than {MAX_TEXT:,} characters")
            if time.monotonic() > deadline:
                raise OverflowError(f"more than {MAX_SECONDS:.0f} seconds")
    except _TROUBLE as problem:
        raise _told(problem, place) from None
    return "".join(pieces)


def _told(problem: BaseException, place: Place) -> TrajkitError:
    """Return the error that tells what went wrong inside a template."""
    words = shorten(str(problem) or type(problem).__name__, 200)
    if isinstance(problem, SecurityError):
        text = f"the chat template reaches out of its sandbox: {words}"
        return RefusedError("R105", text, place=place, hint=_HINT)
    if isinstance(problem, (OverflowError, MemoryError, RecursionError)):
        text = f"the chat template goes over a limit: {words}"
        return RefusedError("R105", text, place=place, hint=_HINT)
    return InputError(
        "T106",
        f"the chat template refuses the conversation: {words}",
        place=place,
        hint="not every template takes every role, order of roles or kind of content",
    )


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the signature templates call
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - a template's clock is the local one


def _magnitude(value: Any) -> float:
    return abs(value) if isinstance(value, (int, float)) else 0


def _no_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")
