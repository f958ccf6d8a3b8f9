import numpy as np
import pytest
import torch

pytest.importorskip("safetensors", reason="safetensors is not installed")

from rlinf_async.ray_runtime.checkpoints.saved_buffer import read_tensors, write_tensors


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(same, one, other))
    return one == other and type(one) is type(other)


def test_what_is_written_is_read_again(tmp_path):
    shared = torch.arange(6.0)
    value = {
        "bf16": torch.randn(3, 2).bfloat16(),
        "flags": torch.tensor([True, False]),
        "both": [shared, shared[2:4], shared],
        "strided": torch.arange(6).reshape(2, 3).T,
        "nested": {"none": None, "pair": (1, 2.5), "text": "pick it up", "empty": {}},
        "array": np.arange(4, dtype=np.int16),
        "texts": np.array(["a", "bc"]),
        "nothing": torch.empty(0, 3),
    }
    write_tensors(tmp_path / "0.safetensors", value)
    assert same(value, read_tensors(tmp_path / "0.safetensors"))


def test_an_object_is_refused(tmp_path):
    with pytest.raises(TypeError, match="a object is neither"):
        write_tensors(tmp_path / "0.safetensors", {"it": object()})


@pytest.mark.parametrize("left", [0, 5, 40, 200])
def test_a_file_that_is_cut_off_is_an_error_that_names_it(tmp_path, left):
    path = tmp_path / "0.safetensors"
    write_tensors(path, {"weights": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match=r"0.safetensors cannot be read"):
        read_tensors(path)


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError, match=r"cannot be written|No such file"):
        write_tensors(tmp_path / "nowhere" / "0.safetensors", {})
    with pytest.raises(OSError, match="No such file"):
        read_tensors(tmp_path / "0.safetensors")
