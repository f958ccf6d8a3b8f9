"""What travels of new weights between machines."""

import dataclasses

import numpy as np
import pytest

from rlinf_async.ray_runtime.publication import weight_mirror
from rlinf_async.ray_runtime.publication.weight_file import WeightsGone, WeightVersions
from rlinf_async.ray_runtime.publication.weight_mirror import (
    WeightServer,
    number_of_parts,
    packed_part,
    part_of,
    unpack_part,
)

ADDRESS = ("nobody", b"")


def changed(old, share, draw):
    """The same numbers of 16 bits, a share of them others."""
    new = old.copy().view(np.uint16)
    at = draw.random(len(new)) < share
    new[at] ^= draw.integers(1, 2**16, at.sum(), dtype=np.uint16)
    return new.view(np.uint8)


def versions_of(*bodies):
    """Two versions at most, and the places of all."""
    versions, places = WeightVersions(changes=True), []
    for version, body in enumerate(bodies):
        versions.begin(len(body)).numpy()[:] = body
        versions.publish(version)
        places.append(versions.place(ADDRESS))
    return versions, places


def test_parts_are_differences_from_a_version_that_is_there_and_whole_for_all_others(monkeypatch):
    monkeypatch.setattr(weight_mirror, "PART_BYTES", 3008)
    draw = np.random.default_rng(0)
    bodies = [draw.integers(0, 256, 8000, dtype=np.uint8)]
    for _ in range(2):
        bodies.append(changed(bodies[-1], 0.02, draw))
    held, (gone, before, newest) = versions_of(*bodies)
    assert number_of_parts(newest) == 3
    elsewhere = dataclasses.replace(before, inode=before.inode + 1)
    few, shorter = versions_of(bodies[0][:4000])
    for other, is_difference in ((before, True), (gone, False), (elsewhere, False), (None, False)):
        target = np.zeros(8000, np.uint8)
        for index in range(3):
            part = packed_part(newest, other, index)
            assert part.is_difference == is_difference
            assert unpack_part(part, part_of(target, index), part_of(bodies[1], index))
        assert target.tobytes() == bodies[2].tobytes()
    assert not packed_part(newest, shorter[0], 1).is_difference
    for missing in (gone, elsewhere):
        with pytest.raises(WeightsGone):
            packed_part(missing, None, 0)
    for versions in (held, few):
        versions.clear()


def test_a_receiver_of_another_version_gets_no_part_that_was_made_for_one_before():
    draw = np.random.default_rng(0)
    old = draw.integers(0, 256, 4000, dtype=np.uint8)
    held, (before, newest) = versions_of(old, changed(old, 0.02, draw))
    server = WeightServer()
    assert server._find(newest, before, 0).is_difference
    assert not server._find(newest, None, 0).is_difference
    held.clear()


def test_a_part_that_is_damaged_or_made_for_another_version_is_noticed():
    draw = np.random.default_rng(0)
    old = draw.integers(0, 256, 4000, dtype=np.uint8)
    new, target = changed(old, 0.02, draw), np.zeros(4000, np.uint8)
    held, (before, newest) = versions_of(old, new)
    by, whole = packed_part(newest, before, 0), packed_part(newest, None, 0)
    assert unpack_part(by, target, old)
    assert not unpack_part(by, target, changed(old, 1e-3, draw))
    assert not unpack_part(by, target, None)
    assert not unpack_part(whole._replace(content=whole.content[:-1]), target, None)
    torn = bytearray(whole.content)
    torn[1234] ^= 1
    assert not unpack_part(whole._replace(content=bytes(torn)), target, None)
    torn = bytearray(by.content)
    torn[-1] ^= 1
    assert not unpack_part(by._replace(content=bytes(torn)), target, old)
    assert not unpack_part(by._replace(content=by.content[:-1]), target, old)
    assert unpack_part(whole, target, None)
    held.clear()
