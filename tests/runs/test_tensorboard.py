"""Event files are read back with the tensorboard package, which is not used to write them."""

import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing import event_accumulator, event_file_loader
from tensorboard.plugins.hparams import api_pb2, metadata

from asfedbridge.runs.tensorboard import EventFile, encode_event, masked_crc


def test_tensorboard_reads_every_number(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "tensorboard")
    numbers = {
        step: {"trained.accuracy/all": step / 3, "loss/\xe4nn": -float(step)} for step in (0, 1, 127, 128, 2**40)
    }
    for step, scalars in numbers.items():
        file.add(step, scalars)
    accumulator = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    assert set(accumulator.Tags()["scalars"]) == {"trained.accuracy/all", "loss/\xe4nn"}
    for tag in accumulator.Tags()["scalars"]:
        found = {event.step: event.value for event in accumulator.Scalars(tag)}
        assert found == {step: pytest.approx(scalars[tag], rel=1e-6) for step, scalars in numbers.items()}


def test_numbers_beyond_float32_are_infinite(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    numbers = {"a": 1e300, "b": -1e39, "c": float("nan"), "d": 10**400, "e": 3.4028235e38}
    file.add(1, numbers)
    _, event = event_file_loader.LegacyEventFileLoader(str(file.path)).Load()
    found = [v.simple_value for v in event.summary.value]
    assert found[:2] == [math.inf, -math.inf]
    assert math.isnan(found[2])
    assert found[3] == math.inf
    assert found[4] < math.inf


def test_the_file_begins_with_its_version(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.add(3, {"a": 1.5})
    version, event = event_file_loader.LegacyEventFileLoader(str(file.path)).Load()
    assert version.file_version == "brain.Event:2"
    assert event.step == 3
    assert [(v.tag, v.simple_value) for v in event.summary.value] == [("a", 1.5)]
    assert abs(event.wall_time - version.wall_time) < 60


def test_the_hparams_plugin_reads_start_and_end_of_a_session(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    given = {"method.name": "fedavg", "alpha": 0.1, "rounds": 20, "augment": False, "name": "\xe4" * 200}
    file.add_hparams(given)
    file.add(0, {"a": 1.5})
    file.end_hparams()
    accumulator = event_accumulator.EventAccumulator(str(tmp_path))
    accumulator.Reload()
    tags = accumulator.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(tags[metadata.SESSION_START_INFO_TAG])
    kinds = {"string_value": str, "number_value": float, "bool_value": bool}
    found = {key: getattr(v, v.WhichOneof("kind")) for key, v in start.hparams.items()}
    assert found == given
    assert {key: kinds[v.WhichOneof("kind")] for key, v in start.hparams.items()} == {
        "method.name": str,
        "alpha": float,
        "rounds": float,
        "augment": bool,
        "name": str,
    }
    end = metadata.parse_session_end_info_plugin_data(tags[metadata.SESSION_END_INFO_TAG])
    assert end.status == api_pb2.STATUS_SUCCESS
    assert start.start_time_secs <= end.end_time_secs
    assert [e.value for e in accumulator.Scalars("a")] == [1.5]


def test_a_damaged_record_is_detected(tmp_path: Path) -> None:
    """Tensorboard checks the checksums and stops at the changed byte."""
    file = EventFile(tmp_path)
    file.add(1, {"a": 1.0})
    content = bytearray(file.path.read_bytes())
    content[-6] ^= 1
    file.path.write_bytes(content)
    assert len(list(event_file_loader.LegacyEventFileLoader(str(file.path)).Load())) == 1  # only the version


def test_known_checksums() -> None:
    # RFC 3720, appendix B.4: CRC-32C of 32 zero bytes is 0x8a9136aa; the mask is TFRecord's.
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert len(encode_event(0.0, 0, {})) > 16


def test_an_earlier_file_is_removed_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.asfedbridge").write_bytes(b"old")
    (tmp_path / "events.out.tfevents.1.other").write_bytes(b"not ours")
    (tmp_path / "notes.txt").write_text("mine")
    file = EventFile(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {file.path.name, "notes.txt", "events.out.tfevents.1.other"}
