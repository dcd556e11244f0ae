import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.data import slow_decoder
from tests.data.slow_decoder import SHAPE, decode, decode_counted, decode_wrongly, expected

from asfedbridge.core.errors import BadInput
from asfedbridge.data import process_pool
from asfedbridge.data.decode_cache import CHUNK, DONE, INDEX, ROWS, decoded, stamp

ITEMS = [str(n) for n in range(3 * CHUNK + 5)]


def store_in(folder: Path) -> Path:
    (store,) = folder.iterdir()
    return store


def content(items: list[str]) -> np.ndarray:
    return np.stack([expected(item) for item in items])


def start_build(folder: Path, count: int, workers: int, marks: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", slow_decoder.__name__, str(folder), str(count), str(workers)]
    here = Path(__file__).parents[2]
    environment = os.environ | {"COUNT_IN": str(marks)}
    return subprocess.Popen(command, cwd=here, env=environment, stderr=subprocess.PIPE, start_new_session=True)


def wait_for_chunks(folder: Path, least: int) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if sum(len(log.read_bytes().splitlines()) for log in folder.glob(f"*/{DONE}")) >= least:
            return
        time.sleep(0.01)
    raise AssertionError("the build did not start")


@pytest.mark.parametrize("workers", [1, 2])
def test_items_are_decoded_once_and_then_read_from_disk(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"
    monkeypatch.setenv("COUNT_IN", str(marks))
    for _ in range(2):
        found = decoded(tmp_path / "set", ITEMS, decode_counted, SHAPE, np.uint8, {"T": 4}, workers=workers)
        assert isinstance(found.rows, np.memmap)
        assert np.array_equal(found.rows, content(ITEMS))
        assert found.damaged == {}
        assert found.kept.tolist() == list(range(len(ITEMS)))
    assert sorted(marks.read_text().split(), key=int) == ITEMS
    assert {p.name for p in store_in(tmp_path / "set").iterdir()} == {ROWS, INDEX, "lock"}


def test_other_items_or_parameters_use_another_cache(tmp_path: Path) -> None:
    for made_from, items in (({"T": 4}, ITEMS), ({"T": 5}, ITEMS), ({"T": 4}, ITEMS[1:])):
        decoded(tmp_path, items, decode, SHAPE, np.uint8, made_from, workers=1)
    assert len(list(tmp_path.iterdir())) == 3


def test_writing_to_the_rows_does_not_change_the_file(tmp_path: Path) -> None:
    first = decoded(tmp_path, ITEMS, decode, SHAPE, np.uint8, {}, workers=1).rows
    first[:] = 9
    assert np.array_equal(decoded(tmp_path, ITEMS, decode, SHAPE, np.uint8, {}).rows, content(ITEMS))


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_build_resumes(tmp_path: Path, workers: int) -> None:
    marks, folder, count = tmp_path / "marks", tmp_path / "set", 8 * CHUNK
    build = start_build(folder, count, workers, marks)
    wait_for_chunks(folder, 3)
    build.send_signal(signal.SIGKILL)
    build.communicate()  # returns when the workers have exited too
    store = store_in(folder)
    assert not (store / INDEX).exists()
    log = (store / DONE).read_bytes()
    (store / DONE).write_bytes(log + b'{"first": 99')  # an incomplete line
    before = len(marks.read_text().split())
    again = start_build(folder, count, workers, marks)
    assert again.wait(300) == 0
    finished = len(log.splitlines()) * CHUNK
    assert len(marks.read_text().split()) - before == count - finished < count
    assert not (store / DONE).exists()


def test_workers_exit_when_the_builder_is_killed(tmp_path: Path) -> None:
    build = start_build(tmp_path / "set", 20 * CHUNK, 2, tmp_path / "marks")
    wait_for_chunks(tmp_path / "set", 1)
    children = Path(f"/proc/{build.pid}/task/{build.pid}/children").read_text().split()
    assert len(children) >= 2
    build.send_signal(signal.SIGKILL)
    build.wait()  # not communicate(): the workers keep its stderr open
    assert build.stderr is not None
    build.stderr.close()
    end = time.monotonic() + 300
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_build_resumes_after_ctrl_c(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    build = start_build(tmp_path / "set", 8 * CHUNK, 2, marks)
    wait_for_chunks(tmp_path / "set", 2)
    os.killpg(build.pid, signal.SIGINT)  # like a terminal, to all foreground processes
    _, noise = build.communicate(timeout=300)
    assert build.returncode != 0
    assert noise.count(b"KeyboardInterrupt") == 1  # from the builder, none from its workers
    assert start_build(tmp_path / "set", 8 * CHUNK, 1, marks).wait(300) == 0


def test_second_builder_waits_for_the_first(tmp_path: Path) -> None:
    marks, count = tmp_path / "marks", 4 * CHUNK
    builds = [start_build(tmp_path / "set", count, 1, marks) for _ in range(2)]
    noises = [build.communicate(timeout=300)[1] for build in builds]
    assert [build.returncode for build in builds] == [0, 0]
    assert len(marks.read_text().split()) == count  # each item once
    assert sum(b"another process is decoding it" in noise for noise in noises) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_damaged_item_stops_the_build_unless_skipped(tmp_path: Path, workers: int) -> None:
    items = [str(n) for n in range(700, 700 + 2 * CHUNK)]
    where = {"folder": tmp_path, "items": items, "decode": decode, "shape": SHAPE, "dtype": np.uint8, "made_from": {}}
    for _ in range(2):  # the second build resumes
        with pytest.raises(BadInput, match=r"^recording 777 is cut short.*set skip_damaged=true$"):
            decoded(**where, workers=workers)
    found = decoded(**where, skip_damaged=True, workers=workers)
    assert list(found.damaged) == [77]
    assert 77 not in found.kept
    assert len(found.kept) == len(items) - 1
    assert np.array_equal(found.rows[found.kept], content(items[:77] + items[78:]))
    assert not found.rows[77].any()
    with pytest.raises(BadInput, match="recording 777"):  # also from the finished cache
        decoded(**where)


def test_incomplete_log_line_is_not_continued(tmp_path: Path) -> None:
    items = [str(n) for n in range(3 * CHUNK)]
    items[-1] = "777"  # damaged: a build stops after two chunks
    for cut in (5, 5):
        with pytest.raises(BadInput, match="recording 777"):
            decoded(tmp_path, items, decode, SHAPE, np.uint8, {}, workers=1)
        log = store_in(tmp_path) / DONE
        whole = log.read_bytes()
        assert [json.loads(line)["first"] for line in whole.splitlines()] == [0, CHUNK]
        log.write_bytes(whole[: len(whole) - cut])
    found = decoded(tmp_path, items, decode, SHAPE, np.uint8, {}, True, 1)
    assert np.array_equal(found.rows[:-1], content(items[:-1]))


def test_decoder_bug_and_dead_worker_are_not_damaged_data(tmp_path: Path) -> None:
    for workers in (1, 2):
        with pytest.raises(ValueError, match=r"decoded to uint8 \(3, 3\)"):
            decoded(tmp_path, ITEMS, decode_wrongly, SHAPE, np.uint8, {}, True, workers)
    with pytest.raises(process_pool.WorkerLost, match="a process that decodes data died"):
        list(process_pool.spread_over_processes(os._exit, [(3,), (3,)], 2))


def test_truncated_rows_are_rebuilt(tmp_path: Path) -> None:
    decoded(tmp_path, ITEMS, decode, SHAPE, np.uint8, {}, workers=1)
    rows = store_in(tmp_path) / ROWS
    rows.write_bytes(rows.read_bytes()[:-1])
    assert np.array_equal(decoded(tmp_path, ITEMS, decode, SHAPE, np.uint8, {}, workers=1).rows, content(ITEMS))


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match=r"file.*cannot be written.*data_root"):
        decoded(tmp_path / "file", ITEMS, decode, SHAPE, np.uint8, {})


def test_stamp_covers_names_sizes_and_times(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12")
    os.utime(file, ns=(5, 5))
    first = stamp([file])
    assert stamp([file]) == first
    os.utime(file, ns=(5, 6))
    assert stamp([file]) != first
    os.utime(file, ns=(5, 5))
    file.rename(tmp_path / "b")
    assert stamp([tmp_path / "b"]) != first


def build(folder: Path) -> np.ndarray:
    return decoded(folder, ITEMS, decode, SHAPE, np.uint8, {"T": 4}, workers=1).rows


def test_rows_of_another_dtype_are_rebuilt(tmp_path: Path) -> None:
    build(tmp_path)
    rows = store_in(tmp_path) / ROWS
    rows.write_bytes(rows.read_bytes().replace(b"|u1", b"|i1"))
    assert np.array_equal(build(tmp_path), content(ITEMS))
    assert build(tmp_path).dtype == np.uint8


@pytest.mark.parametrize("damaged", ["5", '{"x": "y"}', '{"0": "a\\nb"}', '{"0": 5}', '{"99999": "x"}'])
def test_invalid_index_is_rejected(tmp_path: Path, damaged: str) -> None:
    build(tmp_path)
    for text in (f'{{"damaged": {damaged}}}', damaged):
        (store_in(tmp_path) / INDEX).write_text(text)
        with pytest.raises(BadInput, match="is damaged: delete the folder"):
            build(tmp_path)


@pytest.mark.parametrize("line", ["5", "{", "{}", '{"first": "0", "damaged": {}}', '{"first": 1, "damaged": {}}'])
def test_invalid_log_line_is_ignored(tmp_path: Path, line: str) -> None:
    build(tmp_path)
    (store_in(tmp_path) / INDEX).unlink()
    (store_in(tmp_path) / DONE).write_text(line + "\n")
    assert np.array_equal(build(tmp_path), content(ITEMS))
