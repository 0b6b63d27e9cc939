#!/usr/bin/env python3
"""Layer order of src/: a file includes only its own layer and the layers below it; CUDA headers stay in src/cuda."""
import argparse
import pathlib
import re
import sys
import tempfile

# Every layer and the layers it may include besides itself. tests/ and bench/ may include everything.
BELOW = {
    "base": set(),
    "io": {"base"},
    "text": {"base"},
    "grammar": {"base", "text"},
    "model": {"base", "io", "text"},
    "cpu": {"base", "io", "text", "model"},
    "cuda": {"base", "io", "text", "model"},
    "engine": {"base", "io", "text", "grammar", "model", "cpu", "cuda"},
    "server": {"base", "io", "text", "grammar", "model", "cpu", "cuda", "engine"},
    "cli": {"base", "io", "text", "grammar", "model", "cpu", "cuda", "engine", "server"},
}
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_HEADER = re.compile(r"^(cuda|cub/|cublas|cusparse|curand|cufft|cusolver|cute/|cutlass/|nccl|nvtx|thrust/|nvrtc|mma\.h|cooperative_groups)")


def check_file(src, path):
    relative = path.relative_to(src)
    layer = relative.parts[0] if len(relative.parts) > 1 else None
    problems = []
    if layer is not None and layer not in BELOW:
        return [f"src/{relative}: '{layer}' is no layer; the layers are {', '.join(BELOW)}"]
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        where = f"src/{relative}:{number}"
        if CUDA_HEADER.match(target) and layer != "cuda" and not (src / target).is_file():
            problems.append(f"{where}: CUDA header <{target}> outside src/cuda")
            continue
        if quote == "<":
            continue
        if ".." in pathlib.PurePosixPath(target).parts:
            problems.append(f'{where}: "{target}" climbs out of its folder; write it from src/')
            continue
        if not (src / target).is_file():
            problems.append(f'{where}: "{target}" is no file of src/; a library header takes <>')
            continue
        other = pathlib.PurePosixPath(target).parts[0]
        # Files directly in src/ (main.cpp) stand above every layer.
        if layer is not None and other != layer and other not in BELOW[layer]:
            problems.append(f'{where}: "{target}": layer {layer} may not include layer {other}')
    # Highway includes a *-inl.h once per instruction set, so it has a guard of its own.
    if path.suffix in {".h", ".cuh"} and not path.name.endswith("-inl.h") and "#pragma once" not in path.read_text(encoding="utf-8"):
        problems.append(f"src/{relative}: header without #pragma once")
    return problems


def check(root):
    src = root / "src"
    files = sorted(p for p in src.rglob("*") if p.suffix in SUFFIXES)
    problems = [problem for path in files for problem in check_file(src, path)]
    if not files:
        problems.append("src: no sources found")
    return len(files), problems


def self_test():
    """Plants one fault of each kind and requires that exactly that one is reported."""
    good = {
        "src/base/a.h": "#pragma once\n#include <vector>\n",
        "src/model/b.h": '#pragma once\n#include "base/a.h"\n',
        "src/cuda/c.cu": '#include <cuda_runtime.h>\n#include "model/b.h"\n',
        "src/main.cpp": '#include "model/b.h"\n',
    }
    faults = {
        "upward": ("src/base/d.cpp", '#include "model/b.h"\n', "may not include layer model"),
        "sideways": ("src/text/d.cpp", '#  include "io/e.h"\n', "is no file"),
        "sibling": ("src/cpu/d.cpp", '#include "cuda/e.h"\n', "may not include layer cuda"),
        "cuda header": ("src/engine/d.cpp", "#include <cuda_runtime.h>\n", "CUDA header"),
        "cuda header in main": ("src/main.cpp", "#include <cublasLt.h>\n", "CUDA header"),
        "climbing": ("src/model/d.cpp", '#include "../base/a.h"\n', "climbs"),
        "unknown layer": ("src/misc/d.cpp", "", "is no layer"),
        "no pragma": ("src/base/d.h", "", "#pragma once"),
    }
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        for index, (name, fault) in enumerate([("none", None), *faults.items()]):
            root = base / str(index)
            files = dict(good)
            if name == "sibling":
                files["src/cuda/e.h"] = "#pragma once\n"
            if fault:
                files[fault[0]] = fault[1]
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            _, problems = check(root)
            wanted = 1 if fault else 0
            if len(problems) != wanted or (fault and fault[2] not in problems[0]):
                print(f"self-test: fault '{name}': expected {wanted} report, got {problems}")
                return 1
    print(f"check_includes: {len(faults)} planted faults found")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="show that planted faults are found")
    if parser.parse_args().self_test:
        return self_test()
    count, problems = check(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(problems or [f"check_includes: {count} files in order"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
