"""A pack that is too large for one call to carry: parts of it, each carried by a call of its own.

A part is FOLDER/N/NAME.N-COUNT. The machine keeps what earlier calls brought, as long as it is the same machine.
"""

import pathlib
import re
import shutil

PART = re.compile(r"\.(\d+)-(\d+)$")


def split(archive, largest):
    """Replaces an archive of more than `largest` bytes by parts of at most so many. The folders of the parts."""
    size = archive.stat().st_size
    if size <= largest:
        return []
    count = -(-size // largest)
    folders = []
    with open(archive, "rb") as source:
        for number in range(count):
            folder = archive.parent / str(number)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            with open(folder / f"{archive.name}.{number}-{count}", "wb") as part:
                part.write(source.read(-(-size // count)))
            folders.append(folder)
    archive.unlink()
    return folders


def found_in(name, *folders):
    """The archive's parts in these folders, and below them, in order. Where some are missing: [], and their names."""
    parts, counts = {}, set()
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob(name + ".*")):
            if number := PART.search(path.name):
                parts.setdefault(int(number[1]), path)
                counts.add(int(number[2]))
    if not counts:
        return [], f"there is no {name}, and no part of it"
    if len(counts) > 1:
        return [], f"parts of different packs: {', '.join(sorted(p.name for p in parts.values()))}"
    missing = sorted(set(range(counts.pop())) - set(parts))
    if missing:
        return (
            [],
            f"part {', '.join(map(str, missing))} of {name} is missing: carry it by a call of its own, with --keep",
        )
    return [parts[number] for number in sorted(parts)], ""


def keep(folder, kept):
    """Copies the parts in `folder` to `kept`. Their names."""
    kept = pathlib.Path(kept)
    kept.mkdir(parents=True, exist_ok=True)
    found = [path for path in sorted(pathlib.Path(folder).rglob("*")) if path.is_file() and PART.search(path.name)]
    for path in found:
        shutil.copyfile(path, kept / path.name)
    return [path.name for path in found]
