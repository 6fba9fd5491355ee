"""`streamxf.tune` from its arguments to what it prints."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import LZ4, Encrypt, FloatZip, Key, ZStandard, tune
from streamxf.chain import Chain
from streamxf.engine import worker_count
from streamxf.errors import ChainError, ParameterError, PolicyError
from streamxf.tuning.estimate import Estimate, Recommendation

KEY = Key(bytes(range(32)))
FEW = [[], [LZ4()], [FloatZip()]]


def state_dict(size: int = 200_000) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {
        "weight": torch.randn(size, generator=generator).to(torch.bfloat16),
        "moment": torch.randn(size, generator=generator) ** 2,
        "zeros": torch.zeros(size),
        "step": 3,
    }


def test_slow_storage_takes_the_smallest() -> None:
    found = tune(state_dict(), bandwidth=1, chains=FEW)
    sizes = {each.chain: each.stored_bytes for each in found.estimates}
    assert str(found.chain) == min(sizes, key=lambda chain: sizes[chain]) == "floatzip"
    assert found.reason.startswith("storage is the limit")


def test_fast_storage_takes_the_fastest() -> None:
    found = tune(state_dict(), bandwidth=1e18, chains=[[ZStandard(1)], [ZStandard(22)]])
    assert str(found.chain) == "zstd:level=1"  # a hundred times as fast: no timing is that noisy
    assert found.reason.startswith("coding is the limit")


def test_the_default_candidates() -> None:
    found = tune({"w": torch.arange(1000.0)}, bandwidth=1e9)
    assert [each.label for each in found.estimates] == [
        "no chain",
        "lz4:level=0",
        "zstd:level=-1",
        "zstd:level=1",
        "zstd:level=3",
        "zstd:level=9",
        "floatzip",
    ]
    assert (found.raw_bytes, found.sampled_bytes, found.workers) == (4000, 4000, worker_count())
    assert all(each.raw_bytes == 4000 and each.bandwidth == 1e9 for each in found.estimates)


@pytest.mark.parametrize("chain", [[FloatZip()], [ZStandard(3)], [LZ4()], [FloatZip(), Encrypt(KEY)]], ids=str)
def test_the_size_is_what_a_save_stores(tmp_path: Path, chain: list[Any]) -> None:
    generator = torch.Generator().manual_seed(8)
    state = {
        f"layer.{number}": {
            "weight": torch.randn(1500, 1000, generator=generator).to(torch.bfloat16),
            "exp_avg_sq": torch.randn(1500, 1000, generator=generator) ** 2 * 1e-8,
            "mask": torch.zeros(1500, 1000, dtype=torch.bool),
        }
        for number in range(5)
    }
    found = tune(state, bandwidth=1e9, chains=[chain])
    assert found.sampled_bytes < found.raw_bytes / 2
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(tmp_path, _extensions=found.chain))
    stored = sum(file.stat().st_size for file in tmp_path.glob("*.distcp"))
    assert found.estimates[0].stored_bytes == pytest.approx(stored, rel=0.03)


def test_a_checkpoint_is_measured_like_its_state(tmp_path: Path) -> None:
    state = state_dict()
    dcp.save(
        state, storage_writer=streamxf.FileSystemWriter(tmp_path / "saved", _extensions=[FloatZip(), Encrypt(KEY)])
    )
    chains = [[LZ4(), Encrypt(KEY)], [FloatZip(), Encrypt(KEY)]]
    direct = tune(state, bandwidth=1e9, chains=chains)
    stored = tune(tmp_path / "saved", bandwidth=1e9, chains=chains, keys=KEY)
    assert stored.raw_bytes == direct.raw_bytes
    for one, other in zip(stored.estimates, direct.estimates, strict=True):
        assert one.stored_bytes == pytest.approx(other.stored_bytes, rel=0.01)


def test_a_file_of_torch_save_is_measured_like_its_state(tmp_path: Path) -> None:
    torch.save(state_dict(), tmp_path / "state.pt")
    found = tune(str(tmp_path / "state.pt"), bandwidth=1, chains=FEW)
    assert found.raw_bytes == tune(state_dict(), bandwidth=1, chains=FEW).raw_bytes
    assert str(found.chain) == "floatzip"


# -- keys ------------------------------------------------------------------------------------------


def test_with_a_key_the_default_candidates_encrypt() -> None:
    found = tune({"w": torch.arange(1000.0)}, bandwidth=1e9, keys=KEY)
    assert [each.label for each in found.estimates][:2] == ["encrypt", "lz4:level=0+encrypt"]
    encryption = found.chain.encryption
    assert isinstance(encryption, Encrypt)
    assert encryption.recipients == (KEY,)


def test_the_text_form_takes_the_key() -> None:
    found = tune({"w": torch.arange(1000.0)}, bandwidth=1e9, keys=KEY, chains=["floatzip+encrypt"])
    assert str(found.chain) == "floatzip+encrypt"


def test_no_recommendation_drops_the_encryption() -> None:
    with pytest.raises(ParameterError, match="encryption lost"):
        tune(state_dict(), bandwidth=1e9, chains=[FloatZip(), Encrypt(KEY)])


def test_a_single_key_encrypts() -> None:
    with pytest.raises(ParameterError, match="holds 2 keys"):
        tune(state_dict(), bandwidth=1e9, keys=[KEY, Key(bytes(range(200, 232)))])


def test_the_key_stays_out_of_the_result() -> None:
    found = tune({"w": torch.arange(1000.0)}, bandwidth=1e9, keys=KEY)
    for text in (str(found), repr(found), json.dumps(found.to_dict())):
        assert KEY.reveal().hex() not in text
        assert repr(KEY.reveal()) not in text


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bandwidth", [0, -1, -0.0, math.nan, math.inf, True, "2e9", None, 1j])
def test_bandwidth_is_a_positive_number(bandwidth: Any) -> None:
    with pytest.raises(ParameterError, match="bytes per second"):
        tune(state_dict(), bandwidth=bandwidth)


@pytest.mark.parametrize("bandwidth", [1, 2.5e9, Fraction(3, 2), np.float32(1e9), np.int64(5)])
def test_any_real_number_will_do(bandwidth: Any) -> None:
    found = tune({"w": torch.ones(10)}, bandwidth=bandwidth, chains=[[]])
    assert type(found.bandwidth) is float
    assert found.bandwidth == float(bandwidth)


def test_bandwidth_cannot_be_guessed() -> None:
    with pytest.raises(TypeError, match="bandwidth"):
        tune(state_dict())  # type: ignore[call-arg]


@pytest.mark.parametrize("workers", [0, -1, True, 2.0, "2"])
def test_workers_are_counted(workers: Any) -> None:
    with pytest.raises(ParameterError, match="whole number from 1"):
        tune(state_dict(), bandwidth=1e9, workers=workers)


@pytest.mark.parametrize("chains", ["floatzip", FloatZip(), Chain([FloatZip()])])
def test_a_single_chain_is_not_a_list_of_chains(chains: Any) -> None:
    with pytest.raises(ParameterError, match="list of candidates"):
        tune(state_dict(), bandwidth=1e9, chains=chains)


def test_candidates_are_there_once() -> None:
    with pytest.raises(ParameterError, match="at least one"):
        tune(state_dict(), bandwidth=1e9, chains=[])
    with pytest.raises(ParameterError, match="'floatzip' is listed twice"):
        tune(state_dict(), bandwidth=1e9, chains=["floatzip", [FloatZip()]])
    with pytest.raises(ParameterError, match="'no chain' is listed twice"):
        tune(state_dict(), bandwidth=1e9, chains=["", []])
    with pytest.raises(ChainError, match="no codec 'zip'"):
        tune(state_dict(), bandwidth=1e9, chains=["zip"])


@pytest.mark.parametrize("source", [torch.nn.Linear(2, 2), torch.ones(3), 3, None, b"path"])
def test_other_sources_are_refused(source: Any) -> None:
    with pytest.raises(ParameterError, match=r"state_dict\(\)|fsdecode"):
        tune(source, bandwidth=1e9)


def test_bad_arguments_are_found_before_the_source_is_read(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="bytes per second"):
        tune(tmp_path / "missing", bandwidth=0)
    with pytest.raises(FileNotFoundError, match="missing"):
        tune(tmp_path / "missing", bandwidth=1)


def test_a_source_without_bytes_says_what_to_pass(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for source in ({}, {"step": 3}, {"w": torch.empty(0)}, tmp_path / "empty"):
        with pytest.raises(ParameterError, match="nothing to measure"):
            tune(source, bandwidth=1e9)


def test_a_checkpoint_of_no_tensors_says_what_to_pass(tmp_path: Path) -> None:
    dcp.save({"step": 3}, storage_writer=streamxf.FileSystemWriter(tmp_path))
    with pytest.raises(ParameterError, match="nothing to measure"):
        tune(tmp_path, bandwidth=1e9)


def test_a_key_for_an_unencrypted_checkpoint_is_refused(tmp_path: Path) -> None:
    dcp.save(state_dict(), storage_writer=streamxf.FileSystemWriter(tmp_path))
    with pytest.raises(PolicyError, match="leave the keys out if you know that it was not encrypted"):
        tune(tmp_path, bandwidth=1e9, keys=KEY)


# -- the result ------------------------------------------------------------------------------------


def recommendation() -> Recommendation:
    gib = 2**30
    estimates = (
        Estimate("", gib, gib, 4e9, 4e10, 1, 5e8),
        Estimate("lz4:level=0", gib, gib + 4200, 8e9, 1e10, 8, 5e8),
        Estimate("floatzip", gib, gib * 2 // 3, 1.5e9, 3e9, 8, 5e8),
    )
    return Recommendation(Chain([FloatZip()]), estimates, gib, 24 * 2**20, 5e8, 8, "storage is the limit")


def test_the_table() -> None:
    assert str(recommendation()) == (
        "1.0 GiB to storage of 500.00 MB/s, coded by 8 workers; measured on 24.0 MiB\n"
        "  chain           stored  of raw     encode      decode     save     load\n"
        "  no chain       1.0 GiB   1.000  4.00 GB/s  40.00 GB/s  2.147 s  2.147 s\n"
        "  lz4:level=0    1.0 GiB   1.000  8.00 GB/s  10.00 GB/s  2.147 s  2.147 s\n"
        "* floatzip     682.7 MiB   0.667  1.50 GB/s   3.00 GB/s  1.432 s  1.432 s\n"
        "* because storage is the limit"
    )


def test_the_dictionary_is_flat_and_fits_into_json() -> None:
    found = recommendation().to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["chain"] == "floatzip"
    assert found["bandwidth_bytes_per_second"] == 5e8
    assert found["stored_bytes/no chain"] == 2**30
    assert found["save_seconds/floatzip"] == recommendation().estimates[2].save_seconds
    assert len(found) == 6 + 3 * 6


def test_the_recommendation_is_frozen_and_its_chain_saves(tmp_path: Path) -> None:
    state = state_dict(1000)
    found = tune(state, bandwidth=1e9)
    with pytest.raises(AttributeError):
        found.reason = "because"  # type: ignore[misc]
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(tmp_path, _extensions=found.chain))
    target = {name: torch.zeros_like(value) if name != "step" else 0 for name, value in state.items()}
    dcp.load(target, storage_reader=streamxf.FileSystemReader(tmp_path))
    assert torch.equal(target["weight"], state["weight"])
