"""The kernel's tables and scratch memory of torch tensors, on the device they lie on. Dimensions as in `kernel`.

torch is never imported here: the caller that passes a tensor has imported it. Nothing depends on the kind of device but
that it must know float64; streams are the caller's. Whether a chunk has broken or masked tokens is asked of the device,
so the caller waits for it: call from a thread that may.

Dimensions: ``_N`` tokens, ``_S`` sequences, ``_S1`` sequences + 1, ``_P1`` pieces + 1.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.kernel import arithmetic as kernel
from logprobe.collectors.recorder import torch_bridge

CHUNK: Final = 1 << 18  # tokens: 18 MiB of scratch memory on the device, and enough work for each of its kernels
Tensor: TypeAlias = Any


class Table:
    """A `kernel.Table`: the piece p of the chunk is its tokens ``[offsets_P1[p], offsets_P1[p + 1])``."""

    def __init__(self, columns: Mapping[str, Tensor], offsets_P1: Tensor) -> None:
        self._columns = columns
        self._offsets = offsets_P1
        for name in ("n", "n_expected"):
            columns[name].copy_(offsets_P1.diff())

    def sums(self, names: tuple[str, ...], rows_RK: Tensor) -> None:
        """Σ of each row over each piece, into the column of its name."""
        for name, values_K in zip(names, rows_RK, strict=True):
            self._columns[name].copy_(_reduced("sum", values_K, self._offsets, 0.0))

    def count(self, name: str, hits_K: Tensor) -> None:
        """Number of hits in each piece."""
        self._columns[name].copy_(_reduced("sum", hits_K.double(), self._offsets, 0.0))

    def extremes(self, values_K: Tensor) -> tuple[float, float]:
        """`min_d` and `max_d` of each piece; → of all of them."""
        self._columns["min_d"].copy_(_reduced("min", values_K, self._offsets, np.inf))
        self._columns["max_d"].copy_(_reduced("max", values_K, self._offsets, -np.inf))
        return float(self._columns["min_d"].min()), float(self._columns["max_d"].max())

    def keep(self, keep_K: Tensor, *names: str) -> None:
        """From now on the chunk consists of these of its tokens only; their number in each piece goes into the columns
        `names`."""
        kept_P = _reduced("sum", keep_K.double(), self._offsets, 0.0)
        for name in names:
            self._columns[name].copy_(kept_P)
        self._offsets[1:] = kept_P.cumsum(0)


class Workspace:
    """A `kernel.Workspace`."""

    def __init__(self, size: int, device: Any) -> None:
        self.xp = sys.modules["torch"]
        self._memory = self.xp.empty((kernel.ROWS, size), dtype=self.xp.float64, device=device)

    def rows(self, size: int) -> Tensor:
        """Float64 [`kernel.ROWS`, size]."""
        return self._memory[:, :size]

    def range(self, values_K: Tensor) -> tuple[float, float]:
        """Lowest and highest; NaN where one is NaN."""
        return float(values_K.min()), float(values_K.max())

    def hits(self, where_K: Tensor) -> Tensor:
        """Indices of the true ones."""
        return where_K.nonzero()[:, 0]


def tokens(behaviour_N: Any, policy_N: Tensor, advantages_N: Any, mask_N: Any) -> kernel.Tokens:
    """Everything as tensors on the device of `policy_N`."""
    torch = sys.modules["torch"]
    policy = policy_N.detach()
    behaviour = torch.as_tensor(behaviour_N, device=policy.device).detach()
    advantages = None if advantages_N is None else torch.as_tensor(advantages_N, device=policy.device).detach()
    mask = None if mask_N is None else torch.as_tensor(mask_N, device=policy.device) != 0
    return kernel.Tokens(behaviour, policy, advantages, mask)


def filled(values_C: NDArray[np.float64], size: int, device: Any) -> Tensor:
    """[C, size] with each value in all of its row."""
    return torch_bridge.tensor_on(device, values_C)[:, None].repeat(1, size)


def indices(values: NDArray[np.int64], device: Any) -> Tensor:
    """Whole numbers of the host as a tensor."""
    return torch_bridge.tensor_on(device, values)


def segment_sums(values_N: Tensor, offsets_S1: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sum of every sequence [S], on the host; 0 for an empty one."""
    offsets = indices(offsets_S1, values_N.device)
    sums: NDArray[np.float64] = _reduced("sum", values_N.double(), offsets, 0.0).cpu().numpy()
    return sums


def wrapping_sums(values_N: Tensor, offsets_S1: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum of every sequence of int64 values modulo 2⁶⁴ [S], on the host."""
    ends = values_N.cumsum(0)  # wraps around, and so do differences: what they yield is exact
    ends = sys.modules["torch"].cat([ends.new_zeros(1), ends])[indices(offsets_S1, values_N.device)]
    sums: NDArray[np.int64] = ends.diff().cpu().numpy()
    return sums


def _reduced(how: str, values: Tensor, offsets: Tensor, initial: float) -> Tensor:
    return sys.modules["torch"].segment_reduce(values, how, offsets=offsets, initial=initial, unsafe=True)
