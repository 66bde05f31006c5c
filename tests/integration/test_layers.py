# SPDX-License-Identifier: Apache-2.0
"""The order of the sources: who may include whom, and what every file must and must not hold."""

import re
from pathlib import Path

import pytest
from harness import ROOT

# All but build folders and hidden ones.
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*")
               if path.is_file() and not path.relative_to(ROOT).parts[0].startswith(("build", "."))
               and "__pycache__" not in path.parts)
SOURCES = [path for path in FILES if path.suffix in (".c", ".h") and path.parts[0] != "tests"]

# A file may include the folders before its own, and its own.
RANKS = ["protocol", "daemon/util", "daemon/model", "daemon/io", "daemon"]

# The only files that may know each external library.
LIBRARIES = {
    "libwebsockets.h": {"daemon/io/link.c"},
    "ini.h": {"daemon/config.c"},
    "systemd/sd-daemon.h": {"daemon/util/notify.c"},
    "utf8proc.h": {"protocol/filter.c"},
}

# What a pure decision must not know.
IMPURE = re.compile(r"(?<![.>])\b(time|clock_gettime|gettimeofday|uv_\w+|lws_\w+|nl_log\w*|getenv|rand|random|getrandom)\(")


def text_of(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def includes(path: Path) -> list[tuple[str, bool]]:
    """(name, local) of each #include."""
    return [(name, mark == '"') for mark, name in re.findall(r'^#include (["<])([^">]+)[">]', text_of(path), re.M)]


def rank_of(name: str) -> int:
    return max((RANKS.index(rank) for rank in RANKS if name.startswith(rank + "/")), key=lambda r: len(RANKS[r]))


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parts[0] in ("protocol", "daemon")], ids=str)
def test_includes_go_down(path: Path) -> None:
    for name, local in includes(path):
        if local:
            assert name.split("/")[0] in ("protocol", "daemon"), (path, name)
            assert rank_of(name) <= rank_of(str(path)) or name == "daemon/version.h", (path, name)


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parts[0] == "clients"], ids=str)
def test_clients_know_only_the_protocol(path: Path) -> None:
    for name, local in includes(path):
        assert not local or name.split("/")[0] in ("protocol", "clients"), (path, name)


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_external_libraries_have_their_place(path: Path) -> None:
    for name, _ in includes(path):
        assert str(path) in LIBRARIES.get(name, {str(path)}), (path, name)
        if name == "uv.h":
            assert str(path).startswith("daemon/io/") or str(path) == "daemon/main.c", path


@pytest.mark.parametrize("path", [p for p in SOURCES if str(p).startswith(("protocol/", "daemon/model/"))], ids=str)
def test_decisions_are_pure(path: Path) -> None:
    code = re.sub(r"/\*.*?\*/", "", text_of(path), flags=re.S)
    assert not IMPURE.findall(code), (path, IMPURE.findall(code))
    assert not any(name == "daemon/util/log.h" for name, _ in includes(path)), path


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_conditional_compilation_inside_functions(path: Path) -> None:
    code = text_of(path)
    conditions = re.findall(r"^#\s*(?:if|ifdef|ifndef)\b.*$", code, re.M)
    guard = f"#ifndef NL_" if path.suffix == ".h" else None
    assert all(guard is not None and condition.startswith(("#ifndef NL_", "#ifndef NOLAG_"))
               for condition in conditions), (path, conditions)


CODE = [p for p in FILES if p.suffix in (".c", ".h", ".py", ".sh", ".build") or p.name == "nolag-devbroker"]


@pytest.mark.parametrize("path", CODE, ids=str)
def test_licence_and_size(path: Path) -> None:
    head = text_of(path).splitlines()[:3]
    assert any("SPDX-License-Identifier: Apache-2.0" in line for line in head), path
    if path.parts[0] != "tests":
        assert len(text_of(path).splitlines()) <= 900, f"{path} has more than one job"


def test_nothing_names_a_place_of_one_machine() -> None:
    """No home or work folder, and no host that packages come from."""
    forbidden = re.compile("/" + r"(?:home|root|work)/\w|" + "deb" + r"\.debian\.org|registry\." + "npm" + "js")
    for path in FILES:
        if path.suffix in (".jsonl", ".bin"):
            continue
        found = forbidden.search((ROOT / path).read_text(encoding="utf-8", errors="replace"))
        assert found is None, (path, found)


def test_top_level_is_as_designed() -> None:
    allowed = {"protocol", "daemon", "clients", "systemd", "conf", "tests", "meson.build", "meson_options.txt",
               "README.md", "LICENSE"}
    assert {path.parts[0] for path in FILES if not path.parts[0].startswith(".")} <= allowed
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(readme) < 200
