"""Modules without what only their readers need: comments, spaces, parentheses, semicolons and commas that part nothing.

It knows just enough of JavaScript for that: strings, templates, regular expressions and comments. Every statement of a
module must end with a semicolon or a brace, no loop without a body may be the last thing in one, and no text may hold a
function such as (one)=>: so it is with ours.
"""

from __future__ import annotations

import re

_BEFORE_PATTERN = set("(,=:[!&|?{};>")  # after one of these a slash begins a regular expression
_PIECES = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<space>\s+)
    |(?P<pattern>/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\n\[])+/[a-z]*)
    |(?P<rest>[\w$]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_ALONE = re.compile(r"(?<![\w$)\]])\((\w+)\)=>")  # a function's only parameter needs no parentheses
_TEXT = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*", re.DOTALL)  # of a template


def squeezed(code: str) -> str:
    r"""Return the same program in fewer characters.

    >>> squeezed("const one = 1; // first\nreturn `a ${ one + 1 } b`.replace(/ +/g, \" \");")
    'let one=1;return`a ${one+1} b`.replace(/ +/g," ");'
    >>> squeezed("const one = 1; let two = 2; act(); const { three } = two;")
    'let one=1,two=2;act();let{three}=two;'
    >>> squeezed("a + +b; x = y / z; if (a) { return b; }")
    'a+ +b;x=y/z;if(a){return b}'
    >>> squeezed("list.map((one) => one + 1); later(async (one) => one);")
    'list.map(one=>one+1);later(async(one)=>one);'
    """
    made, _ = _code(code, 0, False)
    return _ALONE.sub(r"\1=>", made)


def _code(code: str, place: int, inside: bool) -> tuple[str, int]:
    """Return code up to its end, or up to the brace that ends a template's part, and where that is."""
    made: list[str] = []
    last, wide, depth = "", False, 0  # the sign before; whether a space stands between
    named = [False]  # in each bracket that is open: whether the present statement gives names

    def add(text: str) -> None:
        nonlocal last, wide
        if text in ("const", "let"):
            text = "let"  # readers care that a name stays what it is, browsers do not
            if last == ";" and named[-1]:
                made[-1] = last = ","  # one statement for names that follow each other
                wide = False
                return
            named[-1] = last in ("", *";{}")
        elif last in ";{}" and text != ";":
            named[-1] = False
        if wide and last and ((_word(last) and _word(text[0])) or (last == text[0] and last in "+-")):
            made.append(" ")
        wide = False
        if text == "}" and last in (";", ","):
            made.pop()
        if text in ("{", "(", "["):
            named.append(False)
        elif text in ("}", ")", "]"):
            named.pop()
        made.append(text)
        last = text[-1]

    while place < len(code):
        if code[place] == "`":
            text, place = _template(code, place + 1)
            add(text)
            continue
        found = _PIECES.match(code, place)
        assert found is not None
        kind, text = found.lastgroup, found[0]
        if kind == "pattern" and last not in _BEFORE_PATTERN:
            kind, text = "rest", "/"
        if kind in ("comment", "space"):
            wide = True
        else:
            if kind == "rest":
                depth += (text == "{") - (text == "}")
                if inside and depth < 0:
                    return "".join(made), place
            add(text)
        place += len(text)
    return "".join(made), place


def _template(code: str, place: int) -> tuple[str, int]:
    made = ["`"]
    while True:
        found = _TEXT.match(code, place)
        assert found is not None
        made.append(found[0])
        place = found.end()
        if code[place] == "`":
            return "".join(made) + "`", place + 1
        inner, place = _code(code, place + 2, True)
        made.append("${" + inner + "}")
        place += 1


def _word(sign: str) -> bool:
    return sign.isalnum() or sign in "_$"
