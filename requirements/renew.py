"""Write the files of this folder anew: the versions in the running environment, and the index's hashes of their files.

    python requirements/renew.py

The files list what builds packages from source (`build.txt`), torch alone (`torch.txt`), what dpzv needs (`dpzv.txt`),
what its Flower engine needs besides (`flower.txt`), what private set intersection needs besides (`psi.txt`),
everything for developers (`dev.txt`), and what builds the site of `make docs` in an environment of its own
(`docs.txt`), each with all that this needs in turn. A list whose packages are not installed here stays as it is. A
package has the hashes of its wheels for CPython 3.11 and newer on Linux and macOS, and that of its source. They are
compared at every installation, so that nobody can slip in another file under a known name and version.
"""

from __future__ import annotations

import html
import re
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.request import Request, urlopen

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from pip._internal.models.index import PyPI

HERE = Path(__file__).parent
FILES = {
    "build": (("setuptools", "wheel"), ""),
    "torch": (("torch",), ""),
    "dpzv": (("dpzv",), "torch"),
    "flower": (("dpzv[flower]",), "dpzv"),
    "psi": (("dpzv[psi]",), "dpzv"),
    "dev": (("dpzv[dev]",), "flower"),
    "docs": (("mkdocs-material",), ""),
}
"""What each file is for, and the file that it begins with."""
CUDA = ("cuda-", "nvidia-", "triton")
"""How the names of packages begin that only a build of torch with CUDA needs; it names their versions itself."""
ELSEWHERE = {"torch": {"cpu": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"}}
"""Builds that are not in the index: torch without CUDA, for CPython 3.11 on x86-64."""


def closure(roots: tuple[str, ...]) -> dict[str, str]:
    """Names and versions of `roots` and of everything that they need, dpzv itself apart."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = list(map(Requirement, roots))
    while todo:
        asked = todo.pop()
        name = canonicalize_name(asked.name)
        if name.startswith(CUDA):
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # another platform or an older Python needs it
        if name != "dpzv":
            found[name] = installed.version.split("+")[0]
        for extra in ("", *asked.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                needs = map(Requirement, installed.requires or ())
                todo += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    return found


def wanted(file: str) -> bool:
    """Whether somebody with CPython 3.11 or newer on Linux or macOS may install this file."""
    if not file.endswith(".whl"):
        return file.endswith(".tar.gz")
    return any(
        (tag.platform == "any" or "linux" in tag.platform or "macosx" in tag.platform)
        and (
            tag.interpreter.startswith("py3")
            or (tag.interpreter.startswith("cp3") and (tag.abi == "abi3" or int(tag.interpreter[3:]) >= 11))
        )
        and not tag.abi.endswith("t")
        for tag in parse_wheel_filename(file)[3]
    )


def hashes(name: str, version: str) -> list[str]:
    """The sha256 of every wanted file of a release, as the index says."""
    with urlopen(Request(f"{PyPI.simple_url}/{name}/", headers={"Accept": "text/html"}), timeout=60) as answer:
        page = html.unescape(answer.read().decode())
    found = set(ELSEWHERE.get(name, {}).values())
    for file, sha256 in re.findall(r"/([^/\"#]+)#sha256=([0-9a-f]{64})", page):
        stem = re.escape(name).replace(r"\-", "[-_.]")
        if re.match(rf"{stem}-{re.escape(version)}(-|\.tar)", file, re.IGNORECASE) and wanted(file):
            found.add(sha256)
    if not found:
        raise SystemExit(f"the index has no files of {name} {version}; choose a version that it has.")
    return sorted(found)


def main() -> None:
    """Write all files."""
    listed_in: dict[str, dict[str, str]] = {"": {}}  # by file: its packages, and those that are installed before it
    for file, (roots, first) in FILES.items():
        before = listed_in[first]
        found = {name: version for name, version in sorted(closure(roots).items()) if name not in before}
        if not found:
            continue
        if file == "torch":
            found = {"torch": found["torch"]}
        listed_in["" if file == "build" else file] = before | found
        with ThreadPoolExecutor(8) as pool:
            listed = list(pool.map(hashes, found, found.values()))
        lines = [f"-r {first}.txt"] if first else []
        for (name, version), own in zip(found.items(), listed, strict=True):
            lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{sha256}" for sha256 in own)]))
        (HERE / f"{file}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
