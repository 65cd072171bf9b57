"""Whether a checkpoint folder is whole: all files there, each as long as it says itself.

A trainer writes for minutes, and a copy may be under way. What can be seen in the files is seen
here; that nothing changes any more is for who looks twice (:mod:`mtbench_ray.models.arrivals`).
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path

from mtbench_ray.errors import UserError
from mtbench_ray.models.checkpoint import (
    check_weights,
    read_json,
    safetensors_header,
    weight_files,
)

_UNFINISHED = re.compile(
    r".*\.(tmp|temp|part|partial|incomplete|crdownload)|\.?(tmp|_tmp)[._-].*|.*~"
    r"|\..+\.(safetensors|bin|json)\.\w{6}",  # rsync
    re.IGNORECASE,
)
"""Names of files and folders that are renamed once they are written."""
_DEPTH = 3

Signature = tuple[tuple[str, int, int, int], ...]


def is_unfinished(name: str) -> bool:
    """Whether a file or folder of this name is still to be renamed."""
    return bool(_UNFINISHED.fullmatch(name))


def why_not_whole(folder: Path) -> str:
    """What a model or adapter folder lacks; empty where it is whole.

    JSON files parse, every shard of the index is there with the tensors that the index says, and
    safetensors files are as long as their headers say.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
        if unfinished := next(filter(is_unfinished, names), ""):
            return f"{unfinished} is still being written"
        for name in names:
            if name.endswith(".json"):
                json.loads((folder / name).read_text("utf-8"))
        if not {"config.json", "adapter_config.json"} & set(names):
            return "no config.json in it yet"
        check_weights(folder)
        return _torn(folder, names)
    except UserError as error:
        return error.message.removeprefix(f"{folder} ")
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    except ValueError:
        return f"{name} is not whole"


def _torn(folder: Path, names: list[str]) -> str:
    """What is wrong with weight files that are all there; empty for nothing."""
    index = read_json(folder / "model.safetensors.index.json").get("weight_map", {})
    if missing := sorted(set(map(str, index.values())) - set(names)):
        return f"lacks weights: {missing[0]}"
    files = weight_files(folder)
    for file in files:
        size = file.stat().st_size
        if file.suffix == ".safetensors":
            header = safetensors_header(file)
            ends = [one["data_offsets"][1] for name, one in header.items() if name[:2] != "__"]
            with file.open("rb") as opened:
                start = 8 + int.from_bytes(opened.read(8), "little")
            wanted_size = start + max(ends, default=0)
            if wanted_size != size:
                return f"{file.name} has {size} bytes, and its header says {wanted_size}"
            wanted = {name for name, place in index.items() if place == file.name}
            if lost := sorted(wanted - header.keys()):
                return f"{file.name} lacks {lost[0]}, which the index says is in it"
        elif _begins_as_zip(file) and not zipfile.is_zipfile(file):
            return f"{file.name} is not whole"
    if any("-of-" in file.name for file in files) and not any(
        name.endswith(".index.json") for name in names
    ):
        return "its index is not there"
    return ""


def _begins_as_zip(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(2) == b"PK"


def signature(folder: Path) -> Signature:
    """Equal as long as nothing in a folder changes: names, sizes, times and inodes of its files."""
    found: list[tuple[str, int, int, int]] = []
    pending = [(str(folder), 1)]
    while pending:
        place, depth = pending.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir() and depth < _DEPTH:
                        pending.append((entry.path, depth + 1))
                    stat = entry.stat()
                    found.append((entry.path, stat.st_size, stat.st_mtime_ns, stat.st_ino))
        except OSError:  # it is renamed or removed while we look: no two looks are equal
            found.append((place, -1, -1, len(found)))
    return tuple(sorted(found))


def newest_change(folder: Path) -> float:
    """Unix seconds of the newest change in a folder, by the file system's own record of it.

    A copy may set the time of modification back, but not this one.
    """
    newest = 0.0
    for place, _, names in os.walk(folder):
        for path in (place, *(os.path.join(place, name) for name in names)):
            try:
                newest = max(newest, os.stat(path).st_ctime)
            except OSError:
                newest = float("inf")
    return newest
