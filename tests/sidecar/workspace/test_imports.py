"""Which files of a project an import means."""

import pytest

from sidecar.workspace.ignore import Rules
from sidecar.workspace.imports import imports_of, resolve
from sidecar.workspace.languages import language_of
from sidecar.workspace.listing import Listing
from sidecar.workspace.outline import outline
from sidecar.workspace.root import Root

FILES = (
    "pkg/__init__.py",
    "pkg/a.py",
    "pkg/b.py",
    "pkg/sub/__init__.py",
    "pkg/sub/c.py",
    "pkg/sub/d.py",
    "src/lib1/e.py",
    "tests/test_a.py",
    "tests/helper.py",
    "web/a.ts",
    "web/b.tsx",
    "web/c/index.ts",
    "web/d.js",
    "web/types.d.ts",
    "web/e.vue.ts",
    "go/cmd/main.go",
    "go/store/store.go",
    "go/store/disk.go",
    "go/store/disk_test.go",
    "rs/src/main.rs",
    "rs/src/store.rs",
    "rs/src/net/mod.rs",
    "rs/src/net/http.rs",
    "c/src/main.c",
    "c/src/util.h",
    "c/include/proj/api.h",
    "c/src/util.c",
    "java/src/main/java/com/x/A.java",
    "java/src/main/java/com/x/B.java",
    "java/src/main/java/org/C.java",
    "lua/plug/init.lua",
    "lua/plug/core.lua",
    "lua/main.lua",
    "rb/lib/store.rb",
    "rb/lib/store/disk.rb",
    "rb/app.rb",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("p")
    for path in FILES:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")
    listing = Listing(Root(folder), Rules())
    listing.scan()
    return listing


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("pkg/a.py", "from pkg.b import x", ["pkg/b.py"]),
        ("pkg/a.py", "from pkg import b, unknown", ["pkg/b.py"]),
        ("pkg/a.py", "from pkg import X", ["pkg/__init__.py"]),
        ("pkg/a.py", "from . import b", ["pkg/b.py"]),
        ("pkg/a.py", "from .b import (\n  x as y,  # why\n  z,\n)", ["pkg/b.py"]),
        ("pkg/sub/c.py", "from ..b import x", ["pkg/b.py"]),
        ("pkg/sub/c.py", "from ... import pkg", ["pkg/__init__.py"]),
        ("pkg/sub/c.py", "from ..... import pkg", []),
        ("pkg/sub/c.py", "import pkg.sub.d, os", ["pkg/sub/d.py"]),
        ("pkg/sub/c.py", "from pkg import sub", ["pkg/sub/__init__.py"]),
        ("tests/test_a.py", "from helper import x", ["tests/helper.py"]),
        ("tests/test_a.py", "from lib1.e import x", ["src/lib1/e.py"]),
        ("tests/test_a.py", "import os\nimport numpy as np", []),
        ("pkg/a.py", "from pkg.b im", []),
        ("web/a.ts", 'import { x } from "./b"', ["web/b.tsx"]),
        ("web/a.ts", 'import c, { y } from "./c"', ["web/c/index.ts"]),
        ("web/a.ts", 'import * as d from "./d.js"; import "react"', ["web/d.js"]),
        ("web/a.ts", 'export * from "./types"', ["web/types.d.ts"]),
        ("web/c/index.ts", 'import { a } from "../a.js"', ["web/a.ts"]),
        ("web/d.js", "const a = require('./d')", ["web/d.js"]),
        ("web/a.ts", 'import x from "../../../etc/passwd"', []),
        (
            "go/cmd/main.go",
            'package main\nimport (\n "fmt"\n s "example.com/me/go/store"\n)',
            ["go/store/disk.go", "go/store/store.go"],
        ),
        ("rs/src/main.rs", "use crate::store::{A, B as C};", ["rs/src/store.rs"]),
        ("rs/src/main.rs", "mod net;", ["rs/src/net/mod.rs"]),
        ("rs/src/net/http.rs", "use super::super::store::A;", ["rs/src/store.rs"]),
        ("c/src/main.c", '#include "util.h"\n#include <stdio.h>', ["c/src/util.h"]),
        ("c/src/main.c", "#include <proj/api.h>", ["c/include/proj/api.h"]),
        ("java/src/main/java/com/x/A.java", "import org.C;", ["java/src/main/java/org/C.java"]),
        (
            "java/src/main/java/org/C.java",
            "import static com.x.B.f;",
            ["java/src/main/java/com/x/B.java"],
        ),
        ("lua/main.lua", 'local c = require("plug.core")', ["lua/plug/core.lua"]),
        ("lua/main.lua", 'local c = require "plug"', ["lua/plug/init.lua"]),
        ("rb/app.rb", 'require_relative "lib/store"', ["rb/lib/store.rb"]),
        ("rb/app.rb", 'require "store/disk"', ["rb/lib/store/disk.rb"]),
    ],
)
def test_imports(files, path, text, found):
    language = language_of(path)
    statements = outline(text + "\n", language, path).imports
    resolved = [
        file
        for one in imports_of(statements, language)
        for file in resolve(one, path, language, files)
    ]
    assert resolved == found


def test_names_are_joined_and_all_wins():
    language = language_of("a.py")
    first, second = imports_of(["from a import b, c", "from a import d", "import e"], language)
    assert first.names == {"b", "c", "d"}
    assert second.names == set()
    assert imports_of(["import a", "from a import b"], language)[0].names == set()
