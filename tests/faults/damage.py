"""Damage to files that a run left or has just written: what a disk, a cut of power or a careless hand does to them."""

import os
import re
from collections import defaultdict
from pathlib import Path

DAMAGES = ("flip", "flip", "flips", "digits", "zeros", "truncate", "lengthen", "empty", "remove")
"""How a file is damaged; what comes twice is more likely. `digits`: bits of digits are flipped, which JSON allows."""


def paths_below(folder, pattern=""):
    """Return the paths of the files below a folder in whose path there a regular expression is found."""
    names = (os.path.join(top, name) for top, _, names in os.walk(folder) for name in names)
    return sorted(path for path in names if re.search(pattern, path[len(str(folder)) :]))


def damage_one(damage, paths, rng):
    """Damage one of some files; all files of a kind are as likely as the one file of another.

    Returns:
        What was done to which file; None if there is none.
    """
    groups = defaultdict(list)
    for path in paths:
        groups[re.sub(r"[0-9a-f]{16,}|\d+", "*", path)].append(path)
    if not groups:
        return None
    path = Path(rng.choice(groups[rng.choice(sorted(groups))]))
    if damage in {"flips", "digits"} and not re.search(r"journal|/shards/|\.partial", str(path)):
        damage = "flip"  # what names the owner of a folder may not lose its name
    if damage == "lengthen" and re.search(r"owner\.json|-lock", path.name):
        damage = "truncate"  # what is added to an empty lock is somebody else's
    try:
        damage_file(path, damage, rng)
    except FileNotFoundError:  # removed meanwhile
        return None
    return f"{damage} {path}"


def damage_file(path, damage, rng):
    """Damage a file; its time stays in half of the cases, as when a disk rots."""
    status, data = path.stat(), bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
        return
    at = rng.randrange(len(data)) if data else 0
    if damage in {"flip", "flips"} and data:
        for _ in range(1 if damage == "flip" else rng.choice((4, 20, len(data) // 50))):
            data[at] ^= 1 << rng.randrange(8)
            at = rng.randrange(len(data))
    elif damage == "digits":
        places = [place for place, byte in enumerate(data) if 48 <= byte < 58]
        for place in rng.sample(places, -(-len(places) // 30)):
            data[place] ^= 1
    elif damage == "zeros":
        end = at + rng.choice((1, 8, 600))
        data[at:end] = bytes(len(data[at:end]))
    elif damage in {"truncate", "empty"}:
        del data[at if damage == "truncate" else 0 :]
    elif damage == "lengthen":
        data += rng.choice((rng.randbytes(rng.choice((1, 8, 100))), bytes(data[-at:])))
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
    if rng.random() < 0.5:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
