"""The direction of imports, read from the source; and what importing streamxf costs."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import streamxf

PACKAGE = Path(streamxf.__file__).parent

# From the ground up; modules on one line do not import each other.
LAYERS = [
    ["buffers", "cached", "errors", "extension", "lazy", "version"],
    ["descriptor", "engine", "torch_private", "wording"],
    ["keys", "pipeline", "progress", "budget", "report"],
    ["codec"],
    ["codecs"],
    ["format"],
    ["chain", "storage"],
    ["torchsave"],
    ["stream"],
    ["checkpoint"],
    ["places", "reading", "writing"],
    ["dcp", "formats", "notes"],
    ["tools"],
    ["environment", "testing"],
    ["manager"],
    ["publishing"],
    ["integrations"],
    ["cli"],
    ["__main__"],
]
# Where torch may be imported at the top of a module. Below it is imported by the functions that need it, if at all.
WITH_TORCH = {"dcp", "integrations", "tools", "testing", "cli"}
# Listings of a run need no torch.
WITH_TORCH_LATE = {Path("manager/agreement.py"), Path("manager/manager.py")}
SOURCES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


nodes = cache(lambda path: [*ast.walk(ast.parse((PACKAGE / path).read_text()))])


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
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

    visit(nodes(path)[0], True)
    return found


def module_of(path: Path) -> str:
    return ".".join(("streamxf", *path.with_suffix("").parts)).removesuffix(".__init__")


@cache
def modules_imported(path: Path) -> set[str]:
    """The modules of streamxf that a file imports anywhere, for its annotations, too."""
    known = {module_of(each) for each in SOURCES}
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamxf"):
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in known else str(node.module) for name in named)
    return found


# Methods of fsspec's file systems that expand `[`, `*` and `?` in a path, and those that are others by another name.
EXPANDING = {name for plain in ("rm", "cat", "mv", "glob", "expand_path") for name in (plain, f"_{plain}")}
EXPANDING_TOO = {name for plain in ("get", "put", "copy") for name in (plain, f"_{plain}")}
EXPANDING_TOO |= {"delete", "upload", "download", "cp", "move", "rename"}  # which others have, too
FILE_SYSTEMS = {"filesystem", "_filesystem", "fs", "_fs", "inner", "layer"}  # what streamxf calls them
MAY_EXPAND = {
    (Path("storage/remote.py"), "mv")  # for SFTP alone, where it renames a literal path
}


def expanding_calls(path: Path) -> set[str]:
    """Methods of a file system of fsspec's that a file names, called or not."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if node.attr in EXPANDING or (node.attr in EXPANDING_TOO and name in FILE_SYSTEMS):
                found.add(node.attr)
    return found


def names_imported(path: Path) -> set[str]:
    return {
        f"{node.module}.{each.name}" for node in nodes(path) if isinstance(node, ast.ImportFrom) for each in node.names
    }


def home_layer(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def test_imports_point_downwards():
    ranks = {name: rank for rank, names in enumerate(LAYERS) for name in names}
    for path in (path for path in SOURCES if str(path) != "__init__.py"):
        own = home_layer(path)
        assert own in ranks, f"{path}: {own} has no place yet: say where it belongs"
        others = {module: module.split(".")[1] for module, _ in imports(path) if module.startswith("streamxf.")}
        assert not {module for module, other in others.items() if other != own and ranks[other] >= ranks[own]}, path


def test_every_place_is_there():
    """What is gone leaves the picture, too."""
    layers = {home_layer(path) for path in SOURCES}
    assert sorted(name for names in LAYERS for name in names) == sorted(layers - {"__init__"})


def test_no_module_imports_itself_through_others():
    graph = {}
    for path in SOURCES:
        graph[module_of(path)] = modules_imported(path) - {"streamxf", module_of(path)}
    while ends := [module for module, targets in graph.items() if not targets & graph.keys()]:
        for module in ends:
            del graph[module]
    while starts := graph.keys() - {target for targets in graph.values() for target in targets}:
        for module in starts:
            del graph[module]
    assert not graph, f"circles among {sorted(graph)}"


def test_no_path_in_a_store_is_expanded():
    """Or `exp[12]` would stand for `exp1` and `exp2`."""
    assert {(path, name) for path in SOURCES for name in expanding_calls(path)} == MAY_EXPAND


def test_storages_are_asked_what_they_can_and_not_which_they_are():
    kinds = {"streamxf.storage.local", "streamxf.storage.remote"}
    assert not {path for path in SOURCES if home_layer(path) != "storage" and kinds & dict(imports(path)).keys()}


def test_private_names_stay_in_their_package():
    found = []
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamxf."):
                names = [alias.name for alias in node.names if alias.name[0] == "_" != alias.name[1]]
                if names and (len(path.parts) == 1 or node.module.split(".")[1] != home_layer(path)):
                    found.append(f"{path}: {node.module}.{names[0]}")
    assert not found


def test_a_class_name_stands_for_one_class():
    homes: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_cached_properties_take_no_lock():
    """Which a fork could leave taken, before Python 3.12."""
    assert [path for path in SOURCES if "functools.cached_property" in names_imported(path)] == [Path("cached.py")]


def test_leaves_know_nothing_of_each_others_layer():
    for name in ("errors.py", "buffers.py"):
        assert not [module for module, _ in imports(Path(name)) if module.startswith("streamxf")]
    assert {module for module, _ in imports(Path("descriptor.py")) if module.startswith("streamxf")} == {
        "streamxf.errors"
    }


def test_the_engine_knows_no_streams():
    own = {each for name in ("engine.py", "pipeline.py") for each, _ in imports(Path(name)) if "streamxf" in each}
    assert own <= {"streamxf.engine", "streamxf.errors"}


def test_chain_and_registry_do_not_load_codecs():
    for name in ("chain.py", "codec.py"):
        eager = [module for module, runs in imports(Path(name)) if runs]
        assert not [module for module in eager if module.startswith("streamxf.codecs")]


def test_only_the_dcp_layer_and_above_import_torch_at_once():
    for path in SOURCES:
        if home_layer(path) not in WITH_TORCH and path not in WITH_TORCH_LATE:
            assert not [module for module, runs in imports(path) if runs and module.split(".")[0] == "torch"], path


def test_importing_what_needs_no_torch_imports_none():
    modules = [
        "streamxf" if path.parts == ("__init__.py",) else "streamxf." + ".".join(path.with_suffix("").parts)
        for path in SOURCES
        if home_layer(path) not in WITH_TORCH and path not in WITH_TORCH_LATE
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


def test_type_checkers_see_the_names_where_they_are_at_run_time():
    (block,) = filter(is_type_checking, ast.parse((PACKAGE / "__init__.py").read_text()).body)
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == {**streamxf._HOME, "errors": "streamxf", "keys": "streamxf"}


def test_a_star_import_leaves_the_builtins_alone():
    assert not set(streamxf.__all__) & set(dir(builtins))
    assert "open" in dir(streamxf)
    assert streamxf.open is not open


def test_other_names_do_not():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = streamxf.no_such_name


# What can be read, changed and tested alone. Everything else lies around it.
CORE = {
    *("buffers", "cached", "errors", "extension", "version", "descriptor", "engine", "torch_private", "wording"),
    *("keys", "pipeline", "progress", "budget", "report", "codec", "codecs", "format", "chain", "storage"),
    *("torchsave", "stream", "checkpoint", "dcp", "places", "reading", "writing", "lazy", "__init__"),
}
TESTS = Path(__file__).parent
# Ceilings, which only fall; a change that brings a capability names by how much one rises, once.
LINES = {"core": 31_252, "around": 21_340, "tests": 102_518, "C": 3_475, "JavaScript": 3_427}


def lines_now() -> dict[str, int]:
    """What is there of each kind."""
    found = dict.fromkeys(LINES, 0)
    for part, files in {
        "core": (PACKAGE / path for path in SOURCES if home_layer(path) in CORE),
        "around": (PACKAGE / path for path in SOURCES if home_layer(path) not in CORE),
        "tests": TESTS.rglob("*.py"),
        "C": (path for ending in "ch" for path in PACKAGE.rglob(f"*.{ending}")),
        "JavaScript": PACKAGE.rglob("*.js"),
    }.items():
        found[part] = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    return found


def test_nothing_grows():
    assert {part: count for part, count in lines_now().items() if count > LINES[part]} == {}


# What rooms around the core may import beside names that docs/api.md has for users: modules for everybody, helpers that
# know nothing of checkpoints or streams, and the one home of torch's private parts, whoever asks.
DECLARED = {"errors", "wording", "places", "reading", "writing"}
HELPERS = {"buffers", "cached", "engine", "lazy", "pipeline", "torch_private", "version"}


def test_tools_are_built_of_what_everybody_can_use():
    """A third party could have written each tool, the manager and the command line."""
    found = set()
    public = (TESTS.parent / "docs/api.md").read_text().partition("## For tools")[0]
    known = {(name.split(".")[1], name.split(".")[-1]) for name in re.findall(r"^::: (\S+)$", public, re.MULTILINE)}
    modules = {module_of(path) for path in SOURCES}
    for path in (path for path in SOURCES if home_layer(path) not in CORE):
        for node in nodes(path):
            if isinstance(node, ast.Import):
                found |= {f"{path}: {each.name}" for each in node.names if each.name.startswith("streamxf.")}
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("streamxf"):
                continue
            for name in (alias.name for alias in node.names):
                module = full if (full := f"{node.module}.{name}") in modules else str(node.module)
                room = [*module.split("."), "__init__"][1]
                if room in CORE - DECLARED - HELPERS and name not in streamxf.__all__ and (room, name) not in known:
                    found.add(f"{path}: {module}.{name}")
    assert not found


def test_few_names_are_for_tools():
    assert sum(len(import_module(f"streamxf.{name}").__all__) for name in ("places", "reading", "writing")) <= 61


def test_what_has_an_underscore_is_used_in_its_own_file():
    """By the rooms around the core; what Python has under such names is public."""
    found = set()
    for path in (path for path in SOURCES if home_layer(path) not in CORE):
        attributes = [node for node in nodes(path) if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)]
        own = {"_replace", "_asdict", "_getframe"} | {
            each.attr for each in attributes if isinstance(each.ctx, ast.Store)
        }
        own |= {node.name for node in nodes(path) if isinstance(node, ast.FunctionDef)}
        fields = [node.target for node in nodes(path) if isinstance(node, ast.AnnAssign)]
        own |= {field.id for field in fields if isinstance(field, ast.Name)}
        found |= {f"{path}: {ast.unparse(node)}" for node in attributes if node.attr not in own}
    assert found <= {"tools/convert/packed.py: self._files"}  # of a base class in a room around the core
