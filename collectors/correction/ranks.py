"""Sums over all ranks of a trainer, by torch.distributed. torch is never imported here: whoever has a group has imported it."""

from __future__ import annotations

import sys
from typing import Any

import array_api_compat

from logprobe.collectors.correction.arithmetic import Array
from logprobe.collectors.errors import InputError


def summed(values: Array, group: Any) -> Array:
    """`values` summed over the ranks of `group`, in place; None: this process alone.

    Every rank of the group must come here, also one whose batch is empty or wholly masked out.

    Raises:
        InputError: a group with arrays that are no torch tensors.
    """
    if group is None:
        return values
    if not array_api_compat.is_torch_array(values):
        raise InputError("group: sums over ranks need torch tensors; leave it out for numpy arrays")
    sys.modules["torch"].distributed.all_reduce(values, group=group)
    return values
