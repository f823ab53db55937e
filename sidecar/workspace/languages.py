"""What a language calls its parts: one row a language, read by `outline` and `imports`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tree_sitter

_NONE: frozenset[str] = frozenset()


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


@dataclass(frozen=True)
class Language:
    """Node types are the grammar's.

    items: what a file offers to others. functions: whose body is not shown. inside: whose members
    stand for themselves. imports: what names other files. elided: stands for a body. comment:
    begins one. index: a folder's own file. folders: where paths may also begin.
    """

    name: str
    suffixes: tuple[str, ...]
    items: frozenset[str]
    functions: frozenset[str]
    imports: frozenset[str]
    inside: frozenset[str] = _NONE
    elided: str = " { ... }"
    comment: str = "//"
    index: tuple[str, ...] = ()
    folders: tuple[str, ...] = ("src", "lib")
    separator: str = "/"


_SCRIPT = Language(
    name="javascript",
    suffixes=(".js", ".jsx", ".mjs", ".cjs"),
    items=_types(
        "function_declaration generator_function_declaration class_declaration lexical_declaration"
        " variable_declaration interface_declaration type_alias_declaration enum_declaration"
        " abstract_class_declaration"
    ),
    functions=_types(
        "function_declaration generator_function_declaration method_definition arrow_function"
        " function_expression"
    ),
    imports=_types("import_statement export_statement lexical_declaration variable_declaration"),
    inside=_types("internal_module statement_block"),
    index=("index.js", "index.jsx", "index.mjs"),
)
_TYPED = (".ts", ".tsx", ".mts", ".cts", ".d.ts")
_C_ITEMS = _types(
    "function_definition declaration type_definition struct_specifier enum_specifier"
    " union_specifier preproc_def preproc_function_def class_specifier template_declaration"
    " alias_declaration concept_definition"
)
_C_INSIDE = _types(
    "preproc_ifdef preproc_if preproc_else linkage_specification declaration_list"
    " namespace_definition"
)
LANGUAGES = (
    Language(
        name="python",
        suffixes=(".py", ".pyi"),
        items=_types("function_definition class_definition type_alias_statement assignment"),
        functions=_types("function_definition"),
        imports=_types("import_statement import_from_statement"),
        elided=" ...",
        comment="#",
        index=("__init__.py", "__init__.pyi"),
        separator=".",
    ),
    _SCRIPT,
    Language(
        name="typescript",
        suffixes=(*_TYPED, *_SCRIPT.suffixes),
        items=_SCRIPT.items,
        functions=_SCRIPT.functions,
        imports=_SCRIPT.imports,
        inside=_SCRIPT.inside,
        index=("index.ts", "index.tsx", "index.d.ts", *_SCRIPT.index),
    ),
    Language(
        name="go",
        suffixes=(".go",),
        items=_types(
            "function_declaration method_declaration type_declaration const_declaration"
            " var_declaration"
        ),
        functions=_types("function_declaration method_declaration"),
        imports=_types("import_declaration"),
    ),
    Language(
        name="rust",
        suffixes=(".rs",),
        items=_types(
            "function_item struct_item enum_item union_item type_item const_item static_item"
            " trait_item impl_item macro_definition"
        ),
        functions=_types("function_item macro_definition"),
        imports=_types("use_declaration mod_item"),
        index=("mod.rs", "lib.rs"),
        separator="::",
    ),
    Language(
        name="c",
        suffixes=(".c",),
        items=_C_ITEMS,
        functions=_types("function_definition preproc_function_def"),
        imports=_types("preproc_include"),
        inside=_C_INSIDE,
        folders=("include", "src", "lib"),
    ),
    Language(
        name="cpp",
        suffixes=(".h", ".hpp", ".hh", ".hxx", ".cc", ".cpp", ".cxx"),
        items=_C_ITEMS,
        functions=_types("function_definition preproc_function_def"),
        imports=_types("preproc_include"),
        inside=_C_INSIDE,
        folders=("include", "src", "lib"),
    ),
    Language(
        name="java",
        suffixes=(".java",),
        items=_types(
            "class_declaration interface_declaration enum_declaration record_declaration"
            " annotation_type_declaration"
        ),
        functions=_types("method_declaration constructor_declaration"),
        imports=_types("import_declaration"),
        folders=("src/main/java", "src/test/java", "src"),
        separator=".",
    ),
    Language(
        name="lua",
        suffixes=(".lua",),
        items=_types("function_declaration variable_declaration assignment_statement"),
        functions=_types("function_declaration function_definition"),
        imports=_types("variable_declaration function_call"),
        elided=" ... end",
        comment="--",
        index=("init.lua",),
        folders=("lua", "src", "lib"),
        separator=".",
    ),
    Language(
        name="ruby",
        suffixes=(".rb",),
        items=_types("class module method singleton_method assignment"),
        functions=_types("method singleton_method"),
        imports=_types("call"),
        elided=" ...",
        comment="#",
        folders=("lib", "app", "src"),
    ),
)
_BY_SUFFIX = {
    suffix: language for language in reversed(LANGUAGES) for suffix in reversed(language.suffixes)
} | dict.fromkeys(_SCRIPT.suffixes, _SCRIPT)

GRAMMARS = frozenset((*(language.name for language in LANGUAGES), "tsx"))


def language_of(path: str) -> Language | None:
    """None for a file that no grammar is known for."""
    return _BY_SUFFIX.get(PurePosixPath(path).suffix.lower())


def grammar_of(path: str) -> str:
    """What `parser_of` takes for a file; empty where no grammar is known for it."""
    suffix = PurePosixPath(path).suffix.lower()
    if suffix == ".tsx":
        return "tsx"
    language = _BY_SUFFIX.get(suffix)
    return language.name if language is not None else ""


def parser_of(grammar: str) -> tree_sitter.Parser:
    """grammar: one of `GRAMMARS`. A new parser each time: two threads must not share one."""
    import tree_sitter

    return tree_sitter.Parser(_loaded(grammar))


@functools.cache
def _loaded(grammar: str) -> tree_sitter.Language:
    import tree_sitter

    return tree_sitter.Language(_grammar(grammar))


def _grammar(name: str) -> object:
    match name:
        case "c":
            import tree_sitter_c

            return tree_sitter_c.language()
        case "cpp":
            import tree_sitter_cpp

            return tree_sitter_cpp.language()
        case "go":
            import tree_sitter_go

            return tree_sitter_go.language()
        case "java":
            import tree_sitter_java

            return tree_sitter_java.language()
        case "javascript":
            import tree_sitter_javascript

            return tree_sitter_javascript.language()
        case "lua":
            import tree_sitter_lua

            return tree_sitter_lua.language()
        case "python":
            import tree_sitter_python

            return tree_sitter_python.language()
        case "ruby":
            import tree_sitter_ruby

            return tree_sitter_ruby.language()
        case "rust":
            import tree_sitter_rust

            return tree_sitter_rust.language()
        case "tsx":
            import tree_sitter_typescript

            return tree_sitter_typescript.language_tsx()
        case _:
            import tree_sitter_typescript

            return tree_sitter_typescript.language_typescript()
