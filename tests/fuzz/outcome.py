"""What a run leaves in its folder, to compare with a run that nobody disturbed."""

import json
from pathlib import Path
from typing import Any

# What may differ: times, and checksums of files that hold times.
TIMES = {"seconds", "wall_seconds", "records", "sha256"}


def plain(value: Any) -> Any:
    """Without times."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items() if key not in TIMES}
    return [plain(entry) for entry in value] if isinstance(value, list) else value


def outcome(out: Path) -> dict[str, Any]:
    """All that a run leaves, by file."""
    found: dict[str, Any] = {}
    for file in sorted(out.rglob("*")):
        name = file.relative_to(out).as_posix()
        if not file.is_file() or name.startswith("tensorboard/") or file.name in (".lock", "env.json"):
            continue
        if name.startswith("nodes/"):
            name = name.replace(file.relative_to(out / "nodes").parts[0], "RUN")
        if file.name == "federation.json":
            continue
        if file.suffix == ".jsonl":
            found[name] = [plain(json.loads(line)) for line in file.read_text().splitlines()]
        else:
            found[name] = plain(json.loads(file.read_text())) if file.suffix == ".json" else file.read_bytes()
    return found


def compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
