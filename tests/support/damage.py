"""Damage the bytes of files and the values of JSON documents at random."""

import copy

NUMBERS = [0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
VALUES = [
    None, True, 0, -1, 1, 2**31, 2**63, 2**64 - 1, 0.5, 1e308, "", "x", "\0", "/etc/passwd", "../../../etc/passwd",
    "shards/../../x", [], {}, [[]], [None], {"a": {}}, ["a", 1, "b"], [["a", "b", 1]], "9" * 5000, [0] * 300,
]  # fmt: skip


def damage_bytes(data, rng):
    """Return a copy of `data` with one to four random changes: bytes flipped, overwritten, cut, added or repeated."""
    mutated = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(mutated) + 1)
        how = rng.randrange(7)
        if how == 0 and at < len(mutated):
            mutated[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            mutated[at : at + 8] = rng.choice(NUMBERS).to_bytes(8, "little")
        elif how == 2:
            mutated[at : at + 4] = (rng.choice(NUMBERS) % 2**32).to_bytes(4, "little")
        elif how == 3:
            del mutated[at:]
        elif how == 4:
            mutated += rng.randbytes(rng.choice([1, 2, 8, 100]))
        elif how == 5:
            mutated[at:at] = mutated[at : at + rng.randrange(40)]
        else:
            del mutated[at : at + rng.randrange(40)]
    return bytes(mutated)


def damage_json(value, rng, values=VALUES):
    """Replace, drop or repeat a random value in a JSON document, in place where possible; return the document."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        how = rng.random()
        if how < 0.1:
            del value[key]
        elif how < 0.15 and isinstance(value, list):
            value.append(value[key])
        else:
            value[key] = damage_json(value[key], rng, values)
        return value
    return copy.deepcopy(rng.choice(values))
