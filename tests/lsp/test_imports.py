"""The imports of a line, and the repository files they may refer to."""

from __future__ import annotations

from pathlib import Path

import pytest
from codespec_lsp import imports
from codespec_lsp.imports import MAX_FILES, MAX_FOLDERS, MAX_INSIDE, find_imported, import_rows


def lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("", encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "row", "expected"),
    [
        ("shop/cart.py", "import shop.price", ["shop/price.py"]),
        ("shop/cart.py", "import os, price as p", ["shop/price.py"]),
        ("shop/cart.py", "from shop.price import total", ["shop/price.py"]),
        ("shop/cart.py", "from shop import price, missing", ["shop/price.py", "shop/__init__.py"]),
        ("shop/cart.py", "from . import price", ["shop/price.py"]),
        ("shop/cart.py", "from .price import total as t", ["shop/price.py"]),
        ("shop/deep/tax.py", "from ..price import total", ["shop/price.py"]),
        ("main.py", "from engine import Engine", ["src/engine/__init__.py"]),
        ("main.py", "import numpy as np", []),
        ("web/cart.ts", 'import { total } from "./price";', ["web/price.ts"]),
        ("web/cart.ts", 'import { total } from "./price.js";', ["web/price.ts"]),
        ("web/deep/tax.ts", "import total from '../price'", ["web/price.ts"]),
        ("web/cart.ts", 'import { menu } from "./parts";', ["web/parts/index.ts"]),
        ("web/cart.ts", 'import { box } from "@/layout/box";', ["src/layout/box.tsx"]),
        ("web/cart.js", 'const price = require("./price");', ["web/price.ts"]),
        ("web/cart.ts", 'import react from "react";', []),
        ("c/main.c", '#include "box.h"', ["c/box.h"]),
        ("c/main.c", "#include <geo/point.h>", ["include/geo/point.h"]),
        ("c/main.c", "#include <stdio.h>", []),
        ("rust/src/main.rs", "use crate::shop::price::Total;", ["rust/src/shop/price.rs"]),
        ("rust/src/shop/cart.rs", "use super::price::Total;", ["rust/src/shop/price.rs"]),
        ("rust/src/shop/mod.rs", "use super::price::Total;", ["rust/src/price.rs"]),
        ("rust/src/shop.rs", "use self::price::Total;", ["rust/src/shop/price.rs"]),
        ("rust/src/shop.rs", "pub(crate) mod price;", ["rust/src/shop/price.rs"]),
        ("rust/src/main.rs", "mod tests {", []),
        ("rust/src/main.rs", "pub mod price;", ["rust/src/price.rs"]),
        ("java/src/com/shop/Cart.java", "import com.shop.Price;", ["java/src/com/shop/Price.java"]),
        ("java/src/com/shop/Cart.java", "import static com.shop.Price.total;", ["java/src/com/shop/Price.java"]),
        ("go/cart.go", 'import "example.com/shop/prices"', ["go/prices/a.go", "go/prices/b.go"]),
        ("go/cart.go", 'import "encoding/json"', []),
        ("go/cart.go", 'import "github.com/others/testify/prices"', []),
        ("go/prices/c.go", "package prices", []),
        ("shop/cart.py", "import price as os", ["shop/price.py"]),
        ("shop/cart.py", "import os as price", []),
        ("shop/cart.py", "import logging  # as price does", []),
        ("web/cart.ts", "import { EventEmitter } from 'events'", []),
        ("web/cart.ts", 'import { view } from "./views";', ["web/views/index.tsx"]),
        ("web/cart.ts", 'import { total } from "./Price";', []),
        ("web/cart.astro", 'import { total } from "./price";', ["web/price.ts"]),
        ("web/cart.html", '  import { total } from "./price.js";', ["web/price.ts"]),
        (
            "m/src/test/java/com/shop/T.java",
            "import com.shop.Cart;",
            ["m/src/main/java/com/shop/Cart.java"],
        ),
        ("libs/geo/src/main.c", "#include <geo.h>", ["libs/geo/include/geo.h"]),
        ("lib/cart.rb", 'require_relative "price"', ["lib/price.rb"]),
        ("lua/cart.lua", 'local price = require("shop.price")', ["lua/shop/price.lua"]),
    ],
)
def test_which_files_a_row_means(tmp_path: Path, file: str, row: str, expected: list[str]) -> None:
    lay(tmp_path, "shop/__init__.py", "shop/price.py", "src/engine/__init__.py", "web/price.ts", "web/parts/index.ts")
    lay(tmp_path, "src/layout/box.tsx", "c/box.h", "include/geo/point.h", "rust/src/shop/price.rs", "rust/src/price.rs")
    lay(tmp_path, "rust/src/shop/mod.rs", "java/src/com/shop/Price.java", "go/prices/a.go", "go/prices/b.go")
    lay(tmp_path, "go/prices/a_test.go", "go/json/x.go", "lib/price.rb", "lua/shop/price.lua", file)
    lay(tmp_path, "shop/logging.py", "shop/os.py", "src/events.ts", "web/views/index.tsx", "web/price.txt")
    lay(tmp_path, "m/src/main/java/com/shop/Cart.java", "libs/geo/include/geo.h", "rust/src/tests.rs")
    (tmp_path / "go/go.mod").write_text("module example.com/shop\n\ngo 1.22\n")
    found = find_imported([row + "\n"], tmp_path / file, tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in found] == expected


def test_rows_inside_a_bracket_belong_to_the_import() -> None:
    python = ["import os\n", "x = (\n", "from shop import (\n", "    price,\n", ")\n", "y = 1\n"]
    assert import_rows(python) == ["import os\n", "from shop import (\n", "    price,\n", ")\n"]
    script = ["import {\n", "  total,\n", '} from "./price";\n', "total();\n"]
    assert import_rows(script) == script[:3]
    assert len(import_rows(["import (\n", *["x\n"] * 100])) == 1 + MAX_INSIDE
    assert import_rows(["mod tests {\n", "    x\n", "}\n"]) == []
    assert import_rows(["import x" + "y" * 300 + "\n"]) == []


def test_rows_inside_a_bracket_are_read_with_what_opens_it(tmp_path: Path) -> None:
    lay(tmp_path, "a.py", "shop/price.py", "shop/tax.py", "web/a.ts", "web/price.ts", "go/a.go", "go/tax/x.go")
    (tmp_path / "go/go.mod").write_text("module example.com/shop\n")
    rows = ["from shop import (\n", "    price,\n", "    tax,\n", ")\n"]
    assert [path.name for path in find_imported(rows, tmp_path / "a.py", tmp_path)] == ["price.py", "tax.py"]
    rows = ["import {\n", "  total,\n", '} from "./price";\n']
    assert [path.name for path in find_imported(rows, tmp_path / "web/a.ts", tmp_path)] == ["price.ts"]
    rows = ["import (\n", '\t"fmt"\n', '\t"example.com/shop/tax"\n', ")\n"]
    assert [path.name for path in find_imported(rows, tmp_path / "go/a.go", tmp_path)] == ["x.go"]


def test_nothing_outside_the_repository_is_meant_and_not_too_much_inside(tmp_path: Path) -> None:
    inside = tmp_path / "repository"
    lay(tmp_path, "price.py", "price.ts", "repository/a.py", "repository/a.ts", "repository/price.py")
    lay(inside, *(f"m{number}.py" for number in range(20)))
    assert find_imported(["from .. import price\n"], inside / "a.py", inside) == []
    assert find_imported(['import "../price"\n', 'import "/price"\n'], inside / "a.ts", inside) == []
    assert find_imported(["import price\n"], inside / "a.py", inside) == [inside / "price.py"]
    assert find_imported(["import a\n"], inside / "a.py", inside) == [], "itself is none"
    many = [f"import m{number}\n" for number in range(20)]
    assert len(find_imported(many, inside / "a.py", inside)) == MAX_FILES
    assert find_imported(["import price\n"], inside / "a.unknown", inside) == []


def test_work_is_bounded_whatever_a_repository_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*["a"] * 60)
    deep.mkdir(parents=True)
    for number in range(6000):
        (tmp_path / f"n{number}").touch()
    listed, really = list[str](), imports._list
    monkeypatch.setattr(imports, "_list", lambda folder: listed.append(folder) or really(folder))
    rows = [f'import "@/{"a/" * 90}{number}"\n' for number in range(300)]
    assert find_imported(rows, deep / "x.ts", tmp_path) == []
    assert len(listed) == len(set(listed)) <= MAX_FOLDERS
