"""The direction of imports, read from the source; and what importing streamxf costs."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from pathlib import Path

import pytest

import streamxf

PACKAGE = Path(streamxf.__file__).parent

# From the ground up; what stands in one line knows nothing of each other.
LAYERS = [
    ["errors", "version"],
    ["buffers", "descriptor", "engine", "meter", "progress", "wording"],
    ["bar", "keys", "report"],
    ["codec"],
    ["codecs"],
    ["registry"],
    ["chain"],
    ["coder"],
    ["container"],
    ["fileio"],
    ["dcp"],
    ["formats"],
    ["convert", "summary", "testing", "tuning"],
    ["compare"],
    ["cli"],
]
WITH_TORCH = {name for names in LAYERS[LAYERS.index(["dcp"]) :] for name in names}
# The same within dcp/; docs/design.md says what each is for.
ROOMS = [
    ["border", "compat", "extensions", "mounts", "places", "registry", "showing", "stock", "threads"],
    ["metadata", "tensors"],
    ["objects"],
    ["load", "publish", "save"],
    ["reader", "writer"],
    ["attach", "fsspec"],
    ["folder"],
    ["clean", "rekey", "unsafe", "verify"],
    ["salvage"],
]
# a codec is a torch extension too, and only there does it need the streams of the DCP layer
EXCEPTIONS = {("codec.py", "streamxf.dcp.stock")}
SOURCES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def check_order(order: list[list[str]], path: Path, own: str, others: dict[str, str]) -> None:
    """Check that a file of `own` imports only from below; `others` says from where each module is that it imports."""
    ranks = {name: rank for rank, names in enumerate(order) for name in names}
    assert own in ranks, f"{path}: {own} has no place yet: say where it belongs"
    for module, other in others.items():
        assert other == own or ranks[other] < ranks[own], f"{path}: {module}"


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(path: Path) -> list[tuple[str, bool]]:
    """Every import of a file: the module, and whether it runs when the file is imported."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, eager: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, eager) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from streamxf import errors` names a module by what stands behind `import`
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "streamxf" else [node.module]
            )
            found.extend((name, eager) for name in names)
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node)
        for child in ast.iter_child_nodes(node):
            visit(child, eager and not lazy)

    visit(ast.parse((PACKAGE / path).read_text()), True)
    return found


def home_layer(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", [path for path in SOURCES if str(path) != "__init__.py"], ids=str)
def test_imports_point_downwards(path: Path):
    found = {module for module, _ in imports(path) if module.startswith("streamxf.")}
    bound = [module for module in found if (str(path), module) not in EXCEPTIONS]
    check_order(LAYERS, path, home_layer(path), {module: module.split(".")[1] for module in bound})


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parts[0] == "dcp" and len(path.parts) > 1], ids=str)
def test_imports_within_dcp_point_downwards(path: Path):
    if path == Path("dcp/__init__.py"):
        assert not [module for module, _ in imports(path) if module.startswith("streamxf.dcp")]
        return
    rooms = {module: module.split(".")[2] for module, _ in imports(path) if module.startswith("streamxf.dcp.")}
    check_order(ROOMS, path, path.parts[1].removesuffix(".py"), rooms)


def test_every_place_is_there():
    """What is gone leaves the picture, too."""
    layers = {home_layer(path) for path in SOURCES}
    rooms = {path.parts[1].removesuffix(".py") for path in SOURCES if path.parts[0] == "dcp"}
    for order, there in ((LAYERS, layers), (ROOMS, rooms)):
        assert sorted(name for names in order for name in names) == sorted(there - {"__init__"})


def test_leaves_know_nothing_of_each_others_layer():
    for name in ("errors.py", "buffers.py"):
        assert not [module for module, _ in imports(Path(name)) if module.startswith("streamxf")]
    assert {module for module, _ in imports(Path("descriptor.py")) if module.startswith("streamxf")} == {
        "streamxf.errors"
    }


def test_the_engine_knows_no_streams():
    own = {module for module, _ in imports(Path("engine.py")) if module.startswith("streamxf")}
    assert own <= {"streamxf.errors", "streamxf.buffers"}


def test_chain_and_registry_do_not_load_codecs():
    for name in ("chain.py", "registry.py"):
        eager = [module for module, runs in imports(Path(name)) if runs]
        assert not [module for module in eager if module.startswith("streamxf.codecs")]


def test_the_one_exception_is_lazy():
    found = [runs for module, runs in imports(Path("codec.py")) if module.startswith("streamxf.dcp")]
    assert found == [False, False]


def test_only_the_dcp_layer_and_above_import_torch():
    for path in SOURCES:
        if home_layer(path) not in WITH_TORCH:
            assert not [module for module, _ in imports(path) if module.split(".")[0] == "torch"], path


def test_importing_everything_below_dcp_imports_no_torch():
    modules = [
        "streamxf" if path.parts == ("__init__.py",) else "streamxf." + ".".join(path.with_suffix("").parts)
        for path in SOURCES
        if path.parts[0] not in WITH_TORCH
    ]
    code = (
        "import sys\n"
        + "\n".join(f"import {module.removesuffix('.__init__')}" for module in modules)
        + "\nassert 'torch' not in sys.modules and 'streamxf.dcp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_streamxf_imports_nothing_optional():
    heavy = "{'torch', 'numpy', 'zstandard', 'lz4', 'cryptography', 'crc32c'}"
    code = f"import sys, streamxf; loaded = {heavy} & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", streamxf.__all__)
def test_public_names_resolve(name: str):
    assert getattr(streamxf, name) is not None
    assert name in dir(streamxf)


def test_a_star_import_leaves_the_builtins_alone():
    assert not set(streamxf.__all__) & set(dir(builtins))
    assert "open" in dir(streamxf)
    assert streamxf.open is not open


def test_other_names_do_not():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = streamxf.no_such_name
