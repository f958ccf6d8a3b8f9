"""A key or a value that a former version had is refused with what to write instead."""

import re
from dataclasses import fields, is_dataclass

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.config.removed import REMOVED_KEYS


def block_of(name: str) -> dict:
    """The `async` block that has the key, or the value, `name`."""
    path, _, value = name.partition("=")
    block: object = value or "anything"
    for key in reversed(path.split(".")[1:]):
        block = {key: block}
    return block


def known() -> dict[str, type | None]:
    """Every key of the block by its path."""
    found = {}
    for field in fields(AsyncConfig):
        found[f"async.{field.name}"] = None
        if is_dataclass(field.default_factory):
            found |= {f"async.{field.name}.{item.name}": None for item in fields(field.default_factory)}
    return found


@pytest.mark.parametrize("name", REMOVED_KEYS)
def test_a_key_or_value_that_is_gone_is_refused_with_what_to_write_instead(name):
    with pytest.raises(ValueError, match=re.escape(f"{name} is gone: {REMOVED_KEYS[name]}")):
        AsyncConfig.from_mapping(block_of(name))


@pytest.mark.parametrize("name", REMOVED_KEYS)
def test_what_to_write_instead_is_something_that_can_be_written(name):
    for named in re.findall(r"async\.[a-z_.]*[a-z_]", REMOVED_KEYS[name]):
        assert named in known()


def test_a_key_that_never_was_is_refused_as_before():
    with pytest.raises(ValueError, match=re.escape("unknown key async.adapts")):
        AsyncConfig.from_mapping({"adapts": True})
