"""What C++ allows and Metal's compiler refuses: the host's compiler would let it pass."""

from __future__ import annotations

import functools
import re

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
SPACES = re.compile(r"\b(device|constant|thread|threadgroup)\b")
FOREIGN = re.compile(
    r"\b(new|delete|goto|try|throw|virtual|dynamic_cast|typeid|thread_local|long\s+long|std\s*::)\b"
    r"|(\[[&=]\]|\[\])\s*(\(|\{)"
)
SCALARS = [
    "float",
    "half",
    "bfloat",
    "bool",
    "char",
    "uchar",
    "short",
    "ushort",
    "int",
    "uint",
    "long",
    "ulong",
    "size_t",
    "void",
]
SIZED = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)]
TYPES = "|".join(
    [rf"(?:packed_)?{name}[234]?" for name in SCALARS]
    + [*SIZED, "float16_t", "bfloat16_t", r"(?:metal::)?vec<[^<>;]*>"]
)
TYPE_PARAMETER = re.compile(r"\b(?:typename|class)\s+(\w+)")
PROGRAM_CONSTANT = re.compile(
    r"^(?:static\s+|inline\s+)*(?:const|constexpr)\s[^;(){}]*=", re.MULTILINE
)


@functools.cache
def refused(header: str, source: str, type_parameters: frozenset[str]) -> tuple[str, ...]:
    """What Metal's compiler would refuse of a kernel's header and body, in words.

    Known are: words of C++ that Metal has not, pointers and references without an address space,
    and constants of the program outside the constant address space. `type_parameters` are the
    names of types that the kernel's template declares.
    """
    header, source = COMMENT.sub(" ", header), COMMENT.sub(" ", source)
    text = f"{header}\n{source}"
    found = [f"{match[0]!r} is not in the language" for match in FOREIGN.finditer(text)]
    names = "|".join({*TYPE_PARAMETER.findall(text), *type_parameters})
    typed = rf"\b(?:{TYPES}{'|' if names else ''}{names})\s*(?:const\s*)?[*&](?!&)"
    for match in re.finditer(typed, text):
        # The declaration's words in front of the type.
        before = re.split(r"[;{}(),<>=]", text[: match.start()])[-1]
        if not SPACES.search(before) and not SPACES.search(match[0]):
            found.append(f"{match[0]!r} has no address space")
    found += [
        f"{match[0]!r} is a constant of the program, not in the constant address space"
        for match in PROGRAM_CONSTANT.finditer(_outermost(header))
        if not re.search(r"\bconstant\b", match[0])
    ]
    return tuple(found)


def _outermost(text: str) -> str:
    """Text without what is in braces."""
    before = ""
    while before != text:
        before, text = text, re.sub(r"\{[^{}]*\}", ";", text)
    return text
